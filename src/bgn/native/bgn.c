/* Batch-wide and per-sample normalisation of contiguous (N, C, positions) arrays on the CPU.

   Plain C and OpenMP, no torch and no Python: called through ctypes on data pointers. bgn/partition.py says what blocks, groups and
   cells are, bgn/backends/reference.py what is computed. Results do not depend on the number of threads: the order of every sum
   is fixed by the plan. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>

#pragma GCC diagnostic ignored "-Wpsabi" /* vectors are passed to static functions only */

typedef int64_t i64;

enum {
    CELL = 4096,         /* features in a cell, at most */
    BLOCK = 16,          /* additions of a lane before its sum goes to double */
    SLAB = 4,            /* rows that share a partial sum, where groups are large */
    TILE_GROUPS = 64,    /* groups in a tile, at most */
    TILE_BYTES = 160000, /* of one array in a tile: both arrays of a backward pass stay in the second-level cache */
};

typedef struct {
    i64 N, C, D, B, G;    /* as in the paper; B blocks of samples */
    i64 rows;             /* samples in a block */
    i64 cells, slabs;     /* cells of a sample; slabs of a block */
    i64 *start;           /* (cells + 1) first feature of each cell */
    i64 *first;           /* (G + 1) first cell of each group */
    int32_t *channel, *group; /* (cells) */
    i64 runs;             /* pieces of groups, whatever the channel: statistics need no finer ones */
    i64 *run_start;       /* (runs + 1) first feature of each run */
    i64 *run_first;       /* (G + 1) first run of each group */
    int32_t *run_group;   /* (runs) */
    i64 tiles, *tile;     /* (tiles + 1) first group of each tile; no tiles where a group is too large for one */
} bgn_plan;

void bgn_plan_free(bgn_plan *p) {
    if (!p) return;
    free(p->start), free(p->first), free(p->channel), free(p->group), free(p->tile);
    free(p->run_start), free(p->run_first), free(p->run_group), free(p);
}

/* whole: groups are made of whole channels, also where G does not divide C */
bgn_plan *bgn_plan_new(i64 N, i64 C, i64 P, i64 B, i64 G, int whole, i64 itemsize) {
    bgn_plan *p = calloc(1, sizeof *p);
    if (!p) return NULL;
    p->N = N, p->C = C, p->D = C * P, p->B = B, p->G = G, p->rows = N / B, p->slabs = (p->rows + SLAB - 1) / SLAB;
    i64 most = C + G + p->D / CELL + 2, units = whole ? C : p->D, size = whole ? P : 1, widest = 0;
    p->start = malloc((size_t)(most + 1) * sizeof(i64)), p->first = malloc((size_t)(G + 1) * sizeof(i64));
    p->channel = malloc((size_t)most * sizeof(int32_t)), p->group = malloc((size_t)most * sizeof(int32_t));
    p->tile = malloc((size_t)(G + 1) * sizeof(i64));
    p->run_start = malloc((size_t)(most + 1) * sizeof(i64)), p->run_first = malloc((size_t)(G + 1) * sizeof(i64));
    p->run_group = malloc((size_t)most * sizeof(int32_t));
    if (!p->start || !p->first || !p->channel || !p->group || !p->tile || !p->run_start || !p->run_first || !p->run_group)
        return bgn_plan_free(p), NULL;
    for (i64 g = 0, d = 0; g < G; g++) {
        i64 end = (g + 1) * units / G * size;
        p->first[g] = p->cells, p->run_first[g] = p->runs;
        if (end - d > widest) widest = end - d;
        for (i64 r = d; r < end; r += CELL) p->run_start[p->runs] = r, p->run_group[p->runs++] = (int32_t)g;
        while (d < end) {
            i64 c = d / P, stop = (c + 1) * P;
            if (stop > end) stop = end;
            if (stop > d + CELL) stop = d + CELL;
            p->start[p->cells] = d, p->channel[p->cells] = (int32_t)c, p->group[p->cells++] = (int32_t)g;
            d = stop;
        }
    }
    p->first[G] = p->cells, p->start[p->cells] = p->D, p->run_first[G] = p->runs, p->run_start[p->runs] = p->D;
    i64 bytes = widest * p->rows * itemsize;
    if (bytes <= TILE_BYTES) {
        i64 width = TILE_BYTES / (bytes > 0 ? bytes : 1);
        width = width > TILE_GROUPS ? TILE_GROUPS : width;
        for (i64 g = 0; g < G; g += width) p->tile[p->tiles++] = g;
        p->tile[p->tiles] = G;
    }
    return p;
}

#define JOIN3(a, b, c) a##_##b##_##c
#define JOIN(a, b, c) JOIN3(a, b, c)
#define NAME(f) JOIN(f, ISA, TYPE)

#define ISA base
#define T float
#define LANE int32_t
#define W 4
#define TYPE f32
#include "kernels.inc"
#define T double
#define LANE int64_t
#define W 2
#define TYPE f64
#include "kernels.inc"
#undef ISA

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define HAVE_AVX2
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#define ISA avx2
#define T float
#define LANE int32_t
#define W 8
#define TYPE f32
#include "kernels.inc"
#define T double
#define LANE int64_t
#define W 4
#define TYPE f64
#include "kernels.inc"
#undef ISA
#pragma GCC pop_options
#endif

static int wide = -1; /* whether to use AVX2: -1 not yet asked */

/* allow = 0 keeps to the baseline instruction set; returns whether AVX2 is used */
int bgn_use_avx2(int allow) {
#ifdef HAVE_AVX2
    wide = allow && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
    (void)allow;
    wide = 0;
#endif
    return wide;
}

#ifdef HAVE_AVX2
#define PICK(f, type, ...) (wide ? f##_avx2_##type(__VA_ARGS__) : f##_base_##type(__VA_ARGS__))
#else
#define PICK(f, type, ...) f##_base_##type(__VA_ARGS__)
#endif

/* All return 0, or 1 where memory ran out. w, b, gx, gw and gb may be NULL. mean, m2 and rstd are (B, G). */
#define EXPORT(type, t)                                                                                                                 \
    int bgn_forward_##type(const bgn_plan *p, const t *x, t *y, const t *w, const t *b, double eps, t *mean, t *m2, t *rstd, int threads) { \
        return PICK(forward, type, p, x, y, w, b, eps, mean, m2, rstd, threads);                                                          \
    }                                                                                                                                     \
    int bgn_apply_##type(const bgn_plan *p, const t *x, t *y, const t *w, const t *b, double eps, const t *mean, const t *var, int threads) { \
        return PICK(apply, type, p, x, y, w, b, eps, mean, var, threads);                                                                 \
    }                                                                                                                                     \
    int bgn_backward_##type(const bgn_plan *p, const t *gy, const t *x, t *gx, const t *w, const t *mean, const t *rstd, t *gw, t *gb, int threads) { \
        return PICK(backward, type, p, gy, x, gx, w, mean, rstd, gw, gb, threads);                                                       \
    }
EXPORT(f32, float)
EXPORT(f64, double)

/* running = (1 - momentum) * running + momentum * average over the blocks of mean and unbiased variance; both (G) */
#define UPDATE(type, t)                                                                                                        \
    void bgn_update_##type(const bgn_plan *p, const t *mean, const t *m2, t *running_mean, t *running_var, double momentum) {    \
        for (i64 g = 0; g < p->G; g++) {                                                                                         \
            double count = (double)(p->start[p->first[g + 1]] - p->start[p->first[g]]) * (double)p->rows, mu = 0, var = 0;       \
            for (i64 b = 0; b < p->B; b++) mu += (double)mean[b * p->G + g], var += (double)m2[b * p->G + g] / (count - 1);      \
            running_mean[g] = (t)((1 - momentum) * (double)running_mean[g] + momentum * mu / (double)p->B);                      \
            running_var[g] = (t)((1 - momentum) * (double)running_var[g] + momentum * var / (double)p->B);                       \
        }                                                                                                                        \
    }
UPDATE(f32, float)
UPDATE(f64, double)
