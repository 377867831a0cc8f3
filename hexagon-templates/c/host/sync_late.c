/* A matrix unit as unkind as it may be: it begins when somebody waits for it. Vector threads take
 * their parts in an order nobody expects. */
#include "../memory.h"
#include "../sync.h"

#define PARTS 3u
#define DEPTH 64u

static struct {
    void (*work)(const void *argument);
    const void *argument;
} pending[DEPTH];
static uint32_t started, done;

void sync_start(void (*work)(const void *argument), const void *argument)
{
    if (started - done == DEPTH)
        sync_finish();
    pending[started % DEPTH].work = work;
    pending[started++ % DEPTH].argument = argument;
}

void sync_finish(void)
{
    for (; done != started; done++)
        pending[done % DEPTH].work(pending[done % DEPTH].argument);
}

void sync_share(void (*work)(void *argument, uint32_t part, uint32_t parts), void *argument)
{
    for (uint32_t i = 0; i < PARTS; i++)
        work(argument, (i + 2) % PARTS, PARTS);
}

void memory_ended(void *region, uint32_t bytes)
{
    uint8_t *spoilt = region;
    for (uint32_t i = 0; i < bytes; i++)
        spoilt[i] = 0xff;
}
