/* One thread does everything, each thing when it is asked for. */
#include "../sync.h"

void sync_start(void (*work)(const void *argument), const void *argument)
{
    work(argument);
}

void sync_finish(void)
{
}

void sync_share(void (*work)(void *argument, uint32_t part, uint32_t parts), void *argument)
{
    work(argument, 0, 1);
}
