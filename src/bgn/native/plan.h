/* How the kernels walk through one shape: made once per shape, element type and memory format,
   read by every call.

   Glossary (N, C, D and G as in the paper; P is the number of positions of a channel, H * W):

   block   samples that share their statistics, N / B of them; see bgn/partition.py
   group   features that share their statistics
   cell    features of one channel and one group: sums are taken and coefficients kept per cell
   tile    what one thread keeps in its cache between two sweeps
   column  elements at the same place of every sample
   chunk   the part of a block's samples, positions or columns that shares one partial sum. Every
           sum is taken within chunks first, then over the chunks in their order: so results do
           not depend on the number of threads. */

#ifndef BGN_PLAN_H
#define BGN_PLAN_H

#include <stdint.h>

typedef int64_t i64;

enum type { F32, F64, BF16, F16 };
enum walk { SLICED, CHANNELS_LAST, POSITIONAL, BY_ROWS }; /* the last two are PN's */

/* the features of a sample, cut into cells */
typedef struct {
    i64 count;
    i64 *start;     /* (count + 1) first feature of each */
    i64 *first;     /* (G + 1) first cell of each group */
    int32_t *group; /* (count) */
} bgn_cells;

typedef struct {
    int type, walk;
    i64 item_bytes;       /* of an element */
    i64 N, C, P, D, B, G; /* B blocks of samples */
    i64 samples;          /* of a block */
    int whole;            /* whether groups are made of whole channels */
    int streams;          /* whether outputs of training are written past the caches: they, and what
                             is kept beside them, are too large */
    int streams_eval;     /* the same of outputs that are used at once */
    int fetches;          /* whether what is read next is worth asking for: no near cache has it */
    bgn_cells cells;
    int32_t *channel;     /* (cells) */
    i64 *channel_cell;    /* (C + 1) first cell of each channel */
    i64 chunk_size, chunks; /* columns, else samples (SLICED) or positions of a chunk; chunks of a
                               block */
    int32_t *column_cell; /* (D) where cells are too short to be walked along: the cell of each
                             column, in the order of memory; else NULL */

    /* SLICED: the features of a sample lie side by side */
    bgn_cells group_parts;     /* cells whose channel does not matter: enough for the moments */
    i64 tiles, *tile_group;    /* (tiles + 1) first group of each tile; none where a group of all
                                  samples is too large for a tile */
    i64 ranges, *range_cell;   /* (ranges + 1) first cell of each range: cells enough to be worth
                                  handing to a thread, where there are no tiles */

    /* CHANNELS_LAST: the channels of a position lie side by side */
    i64 inner_count, *inner_cells; /* cells that start inside a channel, by position */

    /* POSITIONAL: a tile is all channels of tile_size positions, a sample has `tiles` of them */
    i64 tile_size;

    i64 partials; /* partial sums of a channel's gradients: over parts of the blocks, the tiles or
                     the rows of memory; not for SLICED, unless by columns */
} bgn_plan;

/* Batch renormalization, y = (xhat * r + d) * w + b: what a batch is compared with, and the
   corrections r and d that follow. T is the type of statistics, double for F64, else float. */
typedef struct {
    const void *mean, *var; /* (entries) of T, running; the backward pass does not read them */
    i64 entries;            /* G, or C where groups are whole channels */
    double r_max, d_max;    /* r is 1 / r_max to r_max, d -d_max to d_max; may be infinite */
    void *r, *d;            /* (B, entries) of T; forward writes, backward reads */
} bgn_renorm;

/* What follows the normalizer: y = f(z + residual), where z is its output. */
enum function { LEAKY, SILU, HARDSWISH }; /* LEAKY with a slope of 0 is ReLU */
typedef struct {
    int function;
    int inverted; /* backward: y stands in the place of x, which is computed from it again */
    double slope; /* of LEAKY where its argument is negative */
    const void *residual; /* of x's type, for LEAKY only; or NULL */
    const void *b;        /* backward: the normalizer's bias, or NULL */
    const void *y;        /* backward: the output, whose sign is that of f's argument; or NULL */
    void *inner; /* backward: receives the gradient of f's argument, of x's type; NULL where that is
                    computed on the way: LEAKY without residual, and statistics not frozen */
    void *again; /* backward: receives x, where it is inverted with a residual */
} bgn_act;

/* the first entry of a group, and the first one after its last */
static inline i64 bgn_entry(const bgn_plan *p, i64 entries, i64 group) {
    return entries == p->G ? group : p->channel[p->cells.first[group]];
}
static inline i64 bgn_entry_end(const bgn_plan *p, i64 entries, i64 group) {
    return entries == p->G ? group + 1 : p->channel[p->cells.first[group + 1] - 1] + 1;
}

/* elements of a group in a block */
static inline double bgn_count(const bgn_plan *p, i64 group) {
    const bgn_cells *cells = &p->cells;
    i64 features = cells->start[cells->first[group + 1]] - cells->start[cells->first[group]];
    return (double)features * (double)p->samples;
}

bgn_plan *bgn_plan_new(i64 N, i64 C, i64 P, i64 B, i64 G, int whole, int type, int walk);
void bgn_plan_free(bgn_plan *p);

/* Walk by columns from now on (SLICED and CHANNELS_LAST). Returns 1 where memory ran out. */
int bgn_plan_columns(bgn_plan *p);

#endif
