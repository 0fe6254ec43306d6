/* Batch-wide and per-sample normalization on the CPU: the entry points.

   Plain C and OpenMP, no torch and no Python: called through ctypes on data pointers. plan.h has a
   glossary, bgn/kernels/definition.py says what is computed. Results do not depend on the number of
   threads: the order of every sum is fixed by the plan. */

#include <float.h>
#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

#include "plan.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif
#if defined(__SSE2__)
#include <immintrin.h>
#endif

#pragma GCC diagnostic ignored "-Wpsabi" /* vectors are passed to static functions only */

enum {
    BLOCK = 16,  /* additions of a lane before its sum goes to double */
    PUSH = 512,  /* neighboring bytes that are worth storing past the caches */
    ROWS = 4,    /* rows of channels_last arrays that are summed in registers */
    STRIP = 4,   /* rows that are read side by side */
    BATCH = 256, /* cells whose sums are kept in lanes at a time */
    LINE = 64,   /* bytes that are fetched from memory at a time */
};

/* Of n things, the first that is this thread's (k = 0), and the first after those (k = 1). They are
   the same in all sweeps and passes: a thread finds what it has read or written in its own cache,
   and takes no line from the cache of another. */
static i64 share(i64 n, int k) { return n * (omp_get_thread_num() + k) / omp_get_num_threads(); }

/* The arguments of all entry points; see TASK in statistics.inc for what they are. */
typedef struct {
    const void *gy, *x, *w, *b;
    const void *given_var; /* (G); rstd receives 1 / sqrt(given_var + eps) */
    void *out, *mean, *var, *rstd, *gw, *gb;
    double eps, *exact, *means;
    const bgn_renorm *renorm;
    const bgn_act *act;
    int frozen, low;
} bgn_arguments;

/* What a loop over memory makes of what it reads: of x (or of what stands in its place) and of a
   second array, gy or the residual. Those below OTHERS are compiled on their own. */
enum { OUTPUT, OUTPUT_LEAKY, GRADIENT, GRADIENT_LEAKY, GRADIENT_INVERTED,
       OTHERS, OUTPUT_SUM = OTHERS, OUTPUT_SMOOTH, INNER_SIGN, INNER_SMOOTH, AGAIN };
enum { OF_X, OF_GY, OF_LEAKY, OF_INVERTED }; /* and what it sums */

#define BFLOAT 1
#define BINARY 2
#define JOIN3(a, b, c) a##_##b##_##c
#define JOIN(a, b, c) JOIN3(a, b, c)
#define NAME(f) JOIN(f, ISA, TYPE)

#define ISA base
#define BYTES 16
#include "types.inc"
#undef ISA
#undef BYTES

/* Not with clang: what it makes of a parallel region does not have the function's target. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define HAVE_WIDE
#include <cpuid.h>
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#define ISA avx2
#define BYTES 32
#include "types.inc"
#undef ISA
#undef BYTES
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl")
#define ISA avx512
#define BYTES 64
#include "types.inc"
#undef ISA
#undef BYTES
#pragma GCC pop_options
#endif

enum { BASE, AVX2, AVX512 }; /* instruction sets */
static int in_use = BASE;

/* Use the best instruction set up to `most`; returns which one that is. */
int bgn_use(int most) {
    in_use = BASE;
#ifdef HAVE_WIDE
    unsigned a, b, c = 0, d;
    int f16c = __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
    if (most >= AVX2 && f16c && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        in_use = AVX2;
    if (most >= AVX512 && in_use == AVX2 && __builtin_cpu_supports("avx512f") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl"))
        in_use = AVX512;
#else
    (void)most;
#endif
    return in_use;
}

#ifdef HAVE_WIDE
#define PICK(f, type, ...)                                \
    (in_use == AVX512 ? f##_avx512_##type(__VA_ARGS__)    \
     : in_use == AVX2 ? f##_avx2_##type(__VA_ARGS__)      \
                      : f##_base_##type(__VA_ARGS__))
#else
#define PICK(f, type, ...) f##_base_##type(__VA_ARGS__)
#endif
#define DISPATCH(f)                                                                            \
    static int f(const bgn_plan *p, const bgn_arguments *a, int threads) {                     \
        return p->type == F32    ? PICK(f, f32, p, a, threads)                                 \
               : p->type == F64  ? PICK(f, f64, p, a, threads)                                 \
               : p->type == BF16 ? PICK(f, bf16, p, a, threads)                                \
                                 : PICK(f, f16, p, a, threads);                                \
    }
DISPATCH(forward)
DISPATCH(backward)
DISPATCH(write_all)

/* A large fresh output is mostly page faults: ask for large pages on what lies in it completely. A
   hint, so failure is fine. */
static void advise(const bgn_plan *p, void *memory) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    const uintptr_t page = 2 << 20, begin = (uintptr_t)memory;
    uintptr_t size = (uintptr_t)(p->N * p->D * p->item_bytes);
    uintptr_t from = (begin + page - 1) / page * page, to = (begin + size) / page * page;
    if (memory && to >= from + 2 * page) madvise((void *)from, to - from, MADV_HUGEPAGE);
#else
    (void)p, (void)memory;
#endif
}

/* running = (1 - momentum) * running + momentum * average over the blocks of mean and unbiased
   variance: an entry per group, or per channel of the groups. exact: (2, B, G) mean and biased
   variance. */
static void update(const bgn_plan *p, const double *exact, void *running_mean, void *running_var,
                   i64 entries, double momentum) {
    for (i64 g = 0; g < p->G; g++) {
        double count = bgn_count(p, g), mean = 0, var = 0;
        for (i64 at = g; at < p->B * p->G; at += p->G)
            mean += exact[at], var += exact[p->B * p->G + at];
        mean /= (double)p->B, var = var / (double)p->B * count / (count - 1);
#define MOVE(T, running, value) \
    ((T *)running)[k] = (T)((1 - momentum) * (double)((T *)running)[k] + momentum * (value))
        for (i64 k = bgn_entry(p, entries, g); k < bgn_entry_end(p, entries, g); k++) {
            if (p->type == F64) MOVE(double, running_mean, mean), MOVE(double, running_var, var);
            else MOVE(float, running_mean, mean), MOVE(float, running_var, var);
        }
#undef MOVE
    }
}

enum { DONE, NO_MEMORY, BAD_ARGUMENT };

static int has_entries(const bgn_plan *p, i64 entries) {
    return entries == p->G || (entries == p->C && p->whole);
}

static int corrects(const bgn_plan *p, const bgn_renorm *n) {
    return p->walk < POSITIONAL && has_entries(p, n->entries) && n->r && n->d;
}

/* whether an output can be made: a residual is added before LEAKY only */
static int is_output(const bgn_plan *p, const bgn_act *act) {
    return p->walk < POSITIONAL && act->function >= LEAKY && act->function <= HARDSWISH &&
           (act->function == LEAKY || !act->residual);
}

/* whether there is everything that a backward pass needs, see bgn_act */
static int is_gradient(const bgn_plan *p, const bgn_act *act, int frozen) {
    if (!is_output(p, act)) return 0;
    if (act->function != LEAKY) return act->inner && !act->y && !act->inverted;
    if ((frozen || act->residual) && !(act->inner && act->y)) return 0;
    if (act->inner && !act->y) return 0;
    if (!act->inverted) return !act->again;
    return act->y && act->slope > 0 && !frozen && !act->inner == !act->residual &&
           !act->again == !act->residual;
}

/* The entry points. T, the type of statistics, is double for F64, else float. w, b, gx, gw and
   gb may be NULL; w, b, gw and gb are of T or, where low, of x's type. All return one of the
   codes above. */

/* y = (x - mean) * rstd * w + b with x's own statistics. stats receives mean, biased variance and
   rstd, each (B, G), for PN each (N, P). y may be NULL: statistics only. Where running_mean is not
   NULL, running_mean and running_var have `entries` numbers of T: G, or C where groups are whole
   channels. momentum is the weight of this batch, 0 to 1. *counter, where there is one, is
   incremented. renorm, where there is one, is read before the running statistics move. act, where
   there is one, follows: y is its output. */
int bgn_forward(const bgn_plan *p, const void *x, void *y, const void *w, const void *b, int low,
                double eps, void *stats, void *running_mean, void *running_var, i64 entries,
                double momentum, i64 *counter, const bgn_renorm *renorm, const bgn_act *act,
                int threads) {
    const int positional = p->walk >= POSITIONAL;
    i64 count = positional ? p->N * p->P : p->B * p->G, size = count * (p->type == F64 ? 8 : 4);
    if (threads < 1) return BAD_ARGUMENT;
    if (running_mean && (positional || !running_var || !(momentum >= 0 && momentum <= 1) ||
                         !has_entries(p, entries)))
        return BAD_ARGUMENT;
    if (renorm && (!corrects(p, renorm) || !renorm->mean || !renorm->var || !y ||
                   !(renorm->r_max >= 1) || !(renorm->d_max >= 0)))
        return BAD_ARGUMENT;
    if (act && (!is_output(p, act) || !y)) return BAD_ARGUMENT;
    double *exact = NULL;
    if (running_mean && !(exact = malloc((size_t)(2 * count) * sizeof(double)))) return NO_MEMORY;
    char *mean = stats;
    const bgn_arguments a = {.x = x, .out = y, .w = w, .b = b, .low = low, .eps = eps, .mean = mean,
                             .var = mean + size, .rstd = mean + 2 * size, .exact = exact,
                             .renorm = renorm, .act = act};
    advise(p, y);
    int failed = forward(p, &a, threads);
    if (running_mean && !failed) update(p, exact, running_mean, running_var, entries, momentum);
    if (counter && !failed) ++*counter;
    free(exact);
    return failed;
}

/* y with given statistics, mean and var (G), in one block; rstd (G) receives what the backward pass
   needs */
int bgn_apply(const bgn_plan *p, const void *x, void *y, const void *w, const void *b, int low,
              double eps, const void *mean, const void *var, void *rstd, const bgn_act *act,
              int threads) {
    if (p->walk >= POSITIONAL || p->B != 1 || threads < 1) return BAD_ARGUMENT;
    if (act && !is_output(p, act)) return BAD_ARGUMENT;
    const bgn_arguments a = {.x = x, .out = y, .w = w, .b = b, .low = low, .eps = eps,
                             .mean = (void *)mean, .given_var = var, .rstd = rstd,
                             .act = act};
    advise(p, y);
    return write_all(p, &a, threads);
}

/* The gradients of x, w and b from mean, rstd and, where there is a renorm, its r and d. frozen:
   the statistics do not depend on x. act, where there is one, is what followed: gy is the gradient
   of its output. */
int bgn_backward(const bgn_plan *p, const void *gy, const void *x, void *gx, const void *w, int low,
                 const void *mean, const void *rstd, void *gw, void *gb, int frozen,
                 const bgn_renorm *renorm, const bgn_act *act, int threads) {
    if ((p->walk >= POSITIONAL && frozen) || threads < 1) return BAD_ARGUMENT;
    if (renorm && (frozen || !corrects(p, renorm))) return BAD_ARGUMENT;
    if (act && !is_gradient(p, act, frozen)) return BAD_ARGUMENT;
    bgn_arguments a = {.gy = gy, .x = x, .out = gx, .w = w, .low = low, .mean = (void *)mean,
                       .rstd = (void *)rstd, .gw = gw, .gb = gb, .renorm = renorm,
                       .frozen = frozen, .act = act, .b = act ? act->b : NULL};
    advise(p, gx);
    if (act) advise(p, act->inner), advise(p, act->again);
    if (frozen && !gw && !gb && !act) return gx ? write_all(p, &a, threads) : DONE;
    if (gx && !frozen && p->walk < POSITIONAL) {
        a.means = malloc((size_t)(2 * p->B * p->G) * sizeof(double));
        if (!a.means) return NO_MEMORY;
    }
    int failed = backward(p, &a, threads);
    free(a.means);
    return failed;
}

/* The four sweeps on their own, for whoever changes the statistics between them; not for PN. What
   bgn_forward and bgn_backward write is what these write one after the other, to the bit, with
   rstd = 1 / sqrt(var + eps) and means = sums / count, both computed in double (by torch's rsqrt:
   its sqrt is not exact), unless the variance is too large or too small for T. */

/* mean and biased variance, (B, G) */
int bgn_moments(const bgn_plan *p, const void *x, void *mean, void *var, int threads) {
    if (p->walk >= POSITIONAL || threads < 1) return BAD_ARGUMENT;
    const bgn_arguments a = {.x = x, .mean = mean, .var = var};
    return forward(p, &a, threads);
}

/* y = (x - mean) * rstd * w + b; mean and rstd (B, G) */
int bgn_write(const bgn_plan *p, const void *x, void *y, const void *w, const void *b, int low,
              const void *mean, const void *rstd, int threads) {
    if (p->walk >= POSITIONAL || threads < 1) return BAD_ARGUMENT;
    const bgn_arguments a = {.x = x, .out = y, .w = w, .b = b, .low = low, .mean = (void *)mean,
                             .rstd = (void *)rstd};
    advise(p, y);
    return write_all(p, &a, threads);
}

/* sums (2, B, G): over each group of w * gy and of w * gy * xhat; and the gradients of w and b */
int bgn_products(const bgn_plan *p, const void *gy, const void *x, const void *w, int low,
                 const void *mean, const void *rstd, double *sums, void *gw, void *gb,
                 int threads) {
    if (p->walk >= POSITIONAL || threads < 1) return BAD_ARGUMENT;
    const bgn_arguments a = {.gy = gy, .x = x, .w = w, .low = low, .mean = (void *)mean,
                             .rstd = (void *)rstd, .means = sums, .gw = gw, .gb = gb};
    return backward(p, &a, threads);
}

/* gx = rstd * (w * gy - means[0] - xhat * means[1]); means (2, B, G) are bgn_products' sums divided
   by the number of elements that share the statistic. NULL: the statistics do not depend on x. */
int bgn_write_gradient(const bgn_plan *p, const void *gy, const void *x, void *gx, const void *w,
                       int low, const void *mean, const void *rstd, const double *means,
                       int threads) {
    if (p->walk >= POSITIONAL || threads < 1) return BAD_ARGUMENT;
    const bgn_arguments a = {.gy = gy, .x = x, .out = gx, .w = w, .low = low, .mean = (void *)mean,
                             .rstd = (void *)rstd, .means = (double *)means, .frozen = !means};
    advise(p, gx);
    return write_all(p, &a, threads);
}
