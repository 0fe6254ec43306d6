/* How the kernels walk through one shape: made once per shape, element type and memory format, read by every call. */

#ifndef BGN_PLAN_H
#define BGN_PLAN_H

#include <stdint.h>

typedef int64_t i64;

enum type { F32, F64, BF16, F16 };
enum walk { SLICED, CHANNELS_LAST, POSITIONAL, BY_ROWS }; /* the last two are PN's */

typedef struct {
    int type, walk;
    i64 item;                 /* bytes of an element */
    i64 N, C, P, D, B, G;     /* as in the paper; P positions of a channel, B blocks of samples */
    i64 rows;                 /* samples in a block */
    int streams;              /* whether outputs are too large to be found in a cache afterwards */
    i64 cells;                /* of a sample: features of one channel and one group, at most CELL of them where sliced */
    i64 *start;               /* (cells + 1) first feature of each cell */
    i64 *first;               /* (G + 1) first cell of each group */
    int32_t *channel, *group; /* (cells) */

    /* SLICED: features of a sample lie side by side */
    i64 slab, slabs;      /* rows that share a partial sum; how many such slabs a block has */
    i64 runs;             /* pieces of groups, whatever the channel: statistics need no finer ones */
    i64 *run_start;       /* (runs + 1) first feature of each run */
    i64 *run_first;       /* (G + 1) first run of each group */
    int32_t *run_group;   /* (runs) */
    i64 tiles, *tile;     /* (tiles + 1) first group of each tile: what stays in a cache between two sweeps; else none */
    i64 stripes, *stripe; /* (stripes + 1) first cell of each stripe: enough cells to be worth a thread's turn */

    /* CHANNELS_LAST: the channels of a position lie side by side */
    i64 chunk, chunks;    /* positions that share a partial sum; how many such chunks a block has */
    i64 *of_channel;      /* (C + 1) first cell of each channel */
    i64 events, *event;   /* (events) cells that begin inside a channel, by position */

    /* POSITIONAL: chunk positions make a tile, chunks of them a sample */

    i64 bundles; /* of blocks, tiles or rows: what shares the partial sums of a channel */
} bgn_plan;

/* elements of a group in a block */
static inline double bgn_count(const bgn_plan *p, i64 group) {
    return (double)(p->start[p->first[group + 1]] - p->start[p->first[group]]) * (double)p->rows;
}

#endif
