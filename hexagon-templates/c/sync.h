/* Who runs at the same time: the thread that drives a kernel, its helpers, and the matrix unit.
 *
 * A kernel is written as if all of it ran at once, and every build may run it in any order that
 * these three functions allow.
 */
#ifndef ESTREAM_SYNC_H
#define ESTREAM_SYNC_H

#include <stdint.h>

/* Has the matrix unit's thread run work(argument), which may take until sync_finish returns. At
 * most one such work is under way; `argument` must live until then. */
void sync_start(void (*work)(const void *argument), const void *argument);

/* Returns when that work is done, and at once if there is none. */
void sync_finish(void);

/* Runs work(argument, part, parts) for every part, on as many vector threads as there are, and
 * returns when all are done. Parts write to different places. */
void sync_share(void (*work)(void *argument, uint32_t part, uint32_t parts), void *argument);

#endif
