/* Everything that may run at the same time does: a thread for each work, and for each part of one. */
#include <pthread.h>

#include "../sync.h"

#define PARTS 3u

struct part {
    pthread_t thread;
    void (*work)(void *argument, uint32_t part, uint32_t parts);
    void *argument;
    uint32_t number;
};

/* Works of the matrix unit. There is one at a time, unless somebody forgot to wait. */
#define DEPTH 16u

struct work {
    pthread_t thread;
    void (*work)(const void *argument);
    const void *argument;
};

static struct work ring[DEPTH];
static uint32_t started, done;

static void *run_work(void *argument)
{
    const struct work *work = argument;
    work->work(work->argument);
    return 0;
}

static void *run_part(void *argument)
{
    const struct part *part = argument;
    part->work(part->argument, part->number, PARTS);
    return 0;
}

void sync_start(void (*work)(const void *argument), const void *argument)
{
    if (started - done == DEPTH)
        pthread_join(ring[done++ % DEPTH].thread, 0);
    struct work *next = &ring[started++ % DEPTH];
    next->work = work;
    next->argument = argument;
    if (pthread_create(&next->thread, 0, run_work, next) != 0)
        __builtin_trap();
}

void sync_finish(void)
{
    for (; done != started; done++)
        pthread_join(ring[done % DEPTH].thread, 0);
}

void sync_share(void (*work)(void *argument, uint32_t part, uint32_t parts), void *argument)
{
    struct part parts[PARTS];
    for (uint32_t i = 0; i < PARTS; i++) {
        parts[i].work = work;
        parts[i].argument = argument;
        parts[i].number = i;
        if (pthread_create(&parts[i].thread, 0, run_part, &parts[i]) != 0)
            __builtin_trap();
    }
    for (uint32_t i = 0; i < PARTS; i++)
        pthread_join(parts[i].thread, 0);
}
