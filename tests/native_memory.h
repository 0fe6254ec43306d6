/* For native_check.c: arrays that lie between pages which nobody may touch, and allocations that
   are counted and can fail. */

#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static char name[256]; /* of the case at work */

static void fail(const char *what) {
    printf("%s: %s\n", name, what);
    exit(1);
}

static void crashed(int signal) {
    static const char words[] = ": touched memory that is not its own, or not aligned\n";
    (void)signal;
    _exit(write(1, name, strlen(name)) > 0 && write(1, words, sizeof words - 1) > 0 ? 2 : 3);
}

/* size bytes of NaN, up against the page after them or, where `early`, the page before them;
   neither page may be touched */
static void *fenced(size_t size, int early) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), inside = (size + page - 1) / page * page;
    int access = PROT_READ | PROT_WRITE, kind = MAP_PRIVATE | MAP_ANONYMOUS;
    char *all = mmap(NULL, inside + 2 * page, access, kind, -1, 0);
    if (all == MAP_FAILED) fail("no memory for the test itself");
    *(size_t *)all = inside + 2 * page;
    memset(all + page, 0xff, inside);
    if (mprotect(all, page, PROT_NONE) || mprotect(all + page + inside, page, PROT_NONE))
        fail("no fences");
    return all + page + (early ? 0 : inside - size);
}

static void unfence(void *memory) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *all = (char *)((uintptr_t)memory / page * page - page);
    if (!memory) return;
    mprotect(all, page, PROT_READ);
    munmap(all, *(size_t *)all);
}

static long alive;              /* allocations that are not freed yet */
static long until_failure = -1; /* how many will succeed before one fails; -1: all */

static void *allocated(size_t size, int zero) {
    if (until_failure >= 0 && !until_failure--) return NULL;
    size = (size + 15) / 16 * 16; /* aligned as malloc does */
    void *memory = fenced(size, 0);
    alive++;
    return zero ? memset(memory, 0, size) : memory;
}

static void freed(void *memory) {
    alive -= memory != NULL;
    unfence(memory);
}
