#include "plan.h"

#include <stdlib.h>

enum {
    CELL = 4096,         /* features in a cell, at most */
    UNIT = 8192,         /* elements that are worth a partial sum of their own */
    ROW_BYTES = 8192,    /* of a sample in a tile, at least: memory is read in long runs */
    TILE_BYTES = 160000, /* of one array in a tile: all three of a backward pass stay in the second-level cache */
    TILE_MOST = 2097152, /* of one array in a tile of one group: it stays in a core's share of the last-level cache */
    STREAM_BYTES = 16 << 20, /* of an output that is not in a cache any more when it is read (asking the system is no use: virtual
                                machines report the cache of the host) */
    CHUNKS = 128,        /* chunks of a block, at most */
    BUNDLES = 64,        /* bundles of blocks, tiles or rows, at most */
};

static const i64 ITEM[] = {4, 8, 2, 2}; /* bytes of an element, by type */

static i64 least(i64 a, i64 b) { return a < b ? a : b; }
static i64 most(i64 a, i64 b) { return a > b ? a : b; }
static i64 parts(i64 whole, i64 size) { return (whole + size - 1) / size; }

void bgn_plan_free(bgn_plan *p) {
    if (!p) return;
    free(p->start), free(p->first), free(p->channel), free(p->group), free(p->run_start), free(p->run_first), free(p->run_group);
    free(p->tile), free(p->stripe), free(p->of_channel), free(p->event), free(p);
}

/* Cells and runs: a cell ends where its channel, its group or its patience (at most `longest` features) ends. */
static void cut(bgn_plan *p, int whole, i64 longest) {
    i64 units = whole ? p->C : p->D, size = whole ? p->P : 1;
    for (i64 g = 0, d = 0; g < p->G; g++) {
        i64 end = (g + 1) * units / p->G * size;
        p->first[g] = p->cells, p->run_first[g] = p->runs;
        for (i64 r = d; r < end; r += longest) p->run_start[p->runs] = r, p->run_group[p->runs++] = (int32_t)g;
        while (d < end) {
            i64 c = d / p->P, stop = least(least((c + 1) * p->P, end), d + longest);
            p->start[p->cells] = d, p->channel[p->cells] = (int32_t)c, p->group[p->cells++] = (int32_t)g;
            d = stop;
        }
    }
    p->first[p->G] = p->cells, p->start[p->cells] = p->D;
    p->run_first[p->G] = p->runs, p->run_start[p->runs] = p->D;
}

static void plan_sliced(bgn_plan *p) {
    p->slab = least(most(UNIT / most(p->D / p->cells, 1), 1), p->rows), p->slabs = parts(p->rows, p->slab);
    i64 widest = 0;
    for (i64 g = 0; g < p->G; g++) widest = most(widest, p->start[p->first[g + 1]] - p->start[p->first[g]]);
    i64 bytes = widest * p->rows * p->item;
    if (bytes <= TILE_MOST) {
        i64 width = most(TILE_BYTES / most(bytes, 1), parts(ROW_BYTES, most(widest * p->item, 1)));
        width = most(least(width, TILE_MOST / most(bytes, 1)), 1);
        for (i64 g = 0; g < p->G; g += width) p->tile[p->tiles++] = g;
        p->tile[p->tiles] = p->G;
    }
    for (i64 k = 0, last = -UNIT; k < p->cells; k++)
        if (p->start[k] - last >= UNIT) last = p->start[k], p->stripe[p->stripes++] = k;
    p->stripe[p->stripes] = p->cells;
}

static _Thread_local const bgn_plan *sorted; /* qsort hands its comparison no context */

static int by_position(const void *a, const void *b) {
    i64 j = *(const i64 *)a, k = *(const i64 *)b;
    i64 p = sorted->start[j] % sorted->P, q = sorted->start[k] % sorted->P;
    return p != q ? (p < q ? -1 : 1) : (j < k ? -1 : j > k);
}

static void plan_channels_last(bgn_plan *p) {
    i64 M = p->rows * p->P; /* positions of a block */
    p->chunk = most(most(64, 8 * UNIT / p->C), parts(M, CHUNKS));
    p->chunk = least(most(p->chunk, parts(M, most(M * p->C / 32 / p->cells, 1))), M); /* partial sums stay small beside x */
    p->chunks = parts(M, p->chunk), p->bundles = least(BUNDLES, p->B);
    for (i64 k = 0, c = -1; k < p->cells; k++) {
        if (p->channel[k] != c) p->of_channel[++c] = k;
        else p->event[p->events++] = k;
    }
    p->of_channel[p->C] = p->cells;
    sorted = p;
    qsort(p->event, (size_t)p->events, sizeof(i64), by_position);
}

static void plan_positional(bgn_plan *p) {
    p->chunk = least(most(4 * UNIT / p->C / 16 * 16, 16), p->P), p->chunks = parts(p->P, p->chunk);
    p->bundles = least(BUNDLES, p->N * p->chunks);
}

static void plan_rows(bgn_plan *p) { p->bundles = most(least(BUNDLES, p->N * p->P), 1); }

static i64 *integers(i64 n) { return malloc((size_t)n * sizeof(i64)); }

/* whole: groups are made of whole channels, also where G does not divide C. NULL where memory ran out. */
bgn_plan *bgn_plan_new(i64 N, i64 C, i64 P, i64 B, i64 G, int whole, int type, int walk) {
    bgn_plan *p = calloc(1, sizeof *p);
    if (!p) return NULL;
    p->type = type, p->walk = walk, p->item = ITEM[type], p->N = N, p->C = C, p->P = P, p->D = C * P, p->B = B, p->G = G, p->rows = N / B;
    p->streams = N * p->D * p->item >= STREAM_BYTES;
    if (walk == POSITIONAL) return plan_positional(p), p;
    if (walk == BY_ROWS) return plan_rows(p), p;
    i64 longest = walk == SLICED ? CELL : p->D, size = C + G + p->D / longest + 2;
    p->start = integers(size + 1), p->first = integers(G + 1), p->run_start = integers(size + 1), p->run_first = integers(G + 1);
    p->channel = malloc((size_t)size * sizeof(int32_t)), p->group = malloc((size_t)size * sizeof(int32_t));
    p->run_group = malloc((size_t)size * sizeof(int32_t));
    p->tile = integers(G + 1), p->stripe = integers(size + 1), p->of_channel = integers(C + 1), p->event = integers(size);
    if (!p->start || !p->first || !p->run_start || !p->run_first || !p->channel || !p->group || !p->run_group || !p->tile || !p->stripe ||
        !p->of_channel || !p->event)
        return bgn_plan_free(p), NULL;
    cut(p, whole, longest);
    walk == SLICED ? plan_sliced(p) : plan_channels_last(p);
    return p;
}
