#include "plan.h"

#include <stdlib.h>

enum {
    CELL = 4096,         /* features of a cell, at most, where cells are read one by one */
    UNIT = 8192,         /* elements that are worth a partial sum of their own */
    TILE_BYTES = 160000, /* of one array in a tile: both that a backward pass reads stay in the
                            second-level cache, and those of the next tile */
    ROW_BYTES = 1536,    /* of a sample in a tile, at least: long reads are faster */
    LONG_ROW_BYTES = 8192,        /* the same for groups of more than LARGE_BYTES, */
    LARGE_BYTES = 4 * TILE_BYTES, /* which that cache does not hold */
    TILE_MOST = 2097152, /* of one array in a tile of one group: it stays in a core's share of the
                            last-level cache */
    /* Outputs from here on are written past the caches. A training step keeps its outputs and needs
       x again, so that little of its memory is in a cache; in eval what is written is read next and
       then written over. Asking the system for its caches is no use: virtual machines report those
       of the host. */
    STREAM_BYTES = 2 << 20,
    STREAM_BYTES_EVAL = 16 << 20,
    FETCH_BYTES = 4 << 20,  /* of an array that has to be fetched from further away */
    CHUNKS = 128,           /* chunks of a block, at most, with channels_last */
    PARTIALS = 64,          /* partial sums of the channels' gradients, at most */
    PARTIAL_ROWS = 16,      /* rows of channels that are worth partial sums of their own */
    SHORT_CELL = 40,        /* features, where samples are many */
    SHORT_STRETCH = 10,     /* positions by samples of a block */
    COLUMNS = 2048,         /* of a chunk: their coefficients and sums stay in a near cache */
    MOST_COLUMNS = 1 << 18, /* of a sample: the plan has the cell of each */
};

static const i64 ITEM_BYTES[] = {4, 8, 2, 2}; /* of an element, by type */

static i64 least(i64 a, i64 b) { return a < b ? a : b; }
static i64 most(i64 a, i64 b) { return a > b ? a : b; }
static i64 parts(i64 whole, i64 size) { return (whole + size - 1) / size; }

static void free_cells(bgn_cells *cells) {
    free(cells->start), free(cells->first), free(cells->group);
}

void bgn_plan_free(bgn_plan *p) {
    if (!p) return;
    free_cells(&p->cells), free_cells(&p->group_parts), free(p->channel);
    free(p->tile_group), free(p->range_cell), free(p->channel_cell), free(p->inner_cells);
    free(p->column_cell), free(p);
}

static void add_cell(bgn_cells *cells, i64 start, i64 group) {
    cells->start[cells->count] = start, cells->group[cells->count++] = (int32_t)group;
}

/* A cell ends where its channel or its group ends, or after `longest` features. */
static void cut(bgn_plan *p, i64 longest) {
    i64 units = p->whole ? p->C : p->D, unit_size = p->whole ? p->P : 1;
    for (i64 g = 0, d = 0; g < p->G; g++) {
        i64 end = (g + 1) * units / p->G * unit_size;
        p->cells.first[g] = p->cells.count, p->group_parts.first[g] = p->group_parts.count;
        for (i64 start = d; start < end; start += longest) add_cell(&p->group_parts, start, g);
        while (d < end) {
            i64 c = d / p->P;
            p->channel[p->cells.count] = (int32_t)c;
            add_cell(&p->cells, d, g);
            d = least(least((c + 1) * p->P, end), d + longest);
        }
    }
    for (i64 k = p->cells.count - 1; k >= 0; k--) p->channel_cell[p->channel[k]] = k;
    p->channel_cell[p->C] = p->cells.count;
    p->cells.first[p->G] = p->cells.count, p->cells.start[p->cells.count] = p->D;
    p->group_parts.first[p->G] = p->group_parts.count;
    p->group_parts.start[p->group_parts.count] = p->D;
}

static void plan_sliced(bgn_plan *p) {
    const bgn_cells *cells = &p->cells;
    p->chunk_size = least(most(UNIT / most(p->D / cells->count, 1), 1), p->samples);
    p->chunks = parts(p->samples, p->chunk_size);
    i64 widest = 0; /* features of a group */
    for (i64 g = 0; g < p->G; g++)
        widest = most(widest, cells->start[cells->first[g + 1]] - cells->start[cells->first[g]]);
    i64 bytes = widest * p->samples * p->item_bytes;
    if (bytes <= TILE_MOST) {
        i64 row = bytes > LARGE_BYTES ? LONG_ROW_BYTES : ROW_BYTES;
        i64 width = most(TILE_BYTES / most(bytes, 1), parts(row, most(widest * p->item_bytes, 1)));
        width = most(least(width, TILE_MOST / most(bytes, 1)), 1);
        for (i64 g = 0; g < p->G; g += width) p->tile_group[p->tiles++] = g;
        p->tile_group[p->tiles] = p->G;
    }
    i64 ranges = least(parts(p->D, UNIT), cells->count);
    ranges += ranges > 1 && ranges % 2; /* equal ones, an even number: two threads get as much */
    for (i64 k = 0; k < cells->count; k++)
        if (cells->start[k] * ranges >= p->ranges * p->D) p->range_cell[p->ranges++] = k;
    p->range_cell[p->ranges] = cells->count;
}

static _Thread_local const bgn_plan *sorted; /* qsort hands its comparison no context */

static int by_position(const void *a, const void *b) {
    i64 j = *(const i64 *)a, k = *(const i64 *)b;
    i64 p = sorted->cells.start[j] % sorted->P, q = sorted->cells.start[k] % sorted->P;
    return p != q ? (p < q ? -1 : 1) : (j < k ? -1 : j > k);
}

static void plan_channels_last(bgn_plan *p) {
    i64 M = p->samples * p->P; /* positions of a block */
    p->chunk_size = most(most(64, 8 * UNIT / p->C), parts(M, CHUNKS));
    i64 worthwhile = parts(M, most(M * p->C / 32 / p->cells.count, 1));
    p->chunk_size = least(most(p->chunk_size, worthwhile), M); /* partial sums are few beside x */
    i64 chunks = parts(M, p->chunk_size);
    chunks += chunks > 1 && chunks % 2; /* equal ones, an even number: two threads get as much */
    p->chunk_size = parts(M, chunks), p->chunks = parts(M, p->chunk_size);
    p->partials = least(PARTIALS, p->B);
    for (i64 k = 0; k < p->cells.count; k++)
        if (p->channel_cell[p->channel[k]] != k) p->inner_cells[p->inner_count++] = k;
    sorted = p;
    qsort(p->inner_cells, (size_t)p->inner_count, sizeof(i64), by_position);
}

/* Whether cells are so short that it takes longer to go from one to the next, in every sample, than
   to have coefficients and sums for each column. */
static int has_short_cells(const bgn_plan *p) {
    i64 length = p->D / p->cells.count;
    if (p->D > MOST_COLUMNS) return 0;
    if (p->walk == SLICED) return length * (p->samples + 16) < SHORT_CELL * p->samples;
    return p->inner_count && length < SHORT_STRETCH * p->samples;
}

int bgn_plan_columns(bgn_plan *p) {
    if (p->column_cell) return 0;
    p->column_cell = malloc((size_t)p->D * sizeof(int32_t));
    if (!p->column_cell) return 1;
    for (i64 k = 0; k < p->cells.count; k++)
        for (i64 d = p->cells.start[k]; d < p->cells.start[k + 1]; d++) {
            i64 c = p->channel[k], at = p->walk == SLICED ? d : (d - c * p->P) * p->C + c;
            p->column_cell[at] = (int32_t)k;
        }
    i64 chunks = parts(p->D, COLUMNS);
    chunks += chunks % 2; /* an even number: two threads get as much */
    p->chunk_size = parts(parts(p->D, chunks), 64) * 64, p->chunks = parts(p->D, p->chunk_size);
    p->partials = least(PARTIALS, p->B);
    return 0;
}

static void plan_positional(bgn_plan *p) {
    p->tile_size = least(most(4 * UNIT / p->C / 16 * 16, 16), p->P);
    p->tiles = parts(p->P, p->tile_size), p->partials = least(PARTIALS, p->N * p->tiles);
}

static void plan_rows(bgn_plan *p) {
    p->partials = most(least(PARTIALS, p->N * p->P / PARTIAL_ROWS), 1);
}

static i64 *integers(i64 n) { return malloc((size_t)n * sizeof(i64)); }

static int new_cells(bgn_cells *cells, i64 size, i64 G) {
    cells->start = integers(size + 1), cells->first = integers(G + 1);
    cells->group = malloc((size_t)size * sizeof(int32_t));
    return cells->start && cells->first && cells->group;
}

/* whole: groups are made of whole channels, also where G does not divide C. NULL where memory ran
   out. */
bgn_plan *bgn_plan_new(i64 N, i64 C, i64 P, i64 B, i64 G, int whole, int type, int walk) {
    bgn_plan *p = calloc(1, sizeof *p);
    if (!p) return NULL;
    p->type = type, p->walk = walk, p->item_bytes = ITEM_BYTES[type], p->whole = whole;
    p->N = N, p->C = C, p->P = P, p->D = C * P, p->B = B, p->G = G, p->samples = N / B;
    i64 bytes = N * p->D * p->item_bytes;
    p->streams = bytes >= STREAM_BYTES, p->streams_eval = bytes >= STREAM_BYTES_EVAL;
    p->fetches = bytes >= FETCH_BYTES;
    if (walk == POSITIONAL) return plan_positional(p), p;
    if (walk == BY_ROWS) return plan_rows(p), p;
    i64 longest = walk == SLICED ? CELL : p->D, size = C + G + p->D / longest + 2;
    int made = new_cells(&p->cells, size, G) && new_cells(&p->group_parts, size, G);
    p->channel = malloc((size_t)size * sizeof(int32_t));
    p->tile_group = integers(G + 1), p->range_cell = integers(size + 1);
    p->channel_cell = integers(C + 1), p->inner_cells = integers(size);
    if (!made || !p->channel || !p->tile_group || !p->range_cell || !p->channel_cell ||
        !p->inner_cells)
        return bgn_plan_free(p), NULL;
    cut(p, longest);
    walk == SLICED ? plan_sliced(p) : plan_channels_last(p);
    if (has_short_cells(p) && bgn_plan_columns(p)) return bgn_plan_free(p), NULL;
    return p;
}
