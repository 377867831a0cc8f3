/* How a process that runs the kernels is spoken to: messages on its standard input, a reply to each
 * on its standard output. Batches are those of abi.h. What FastRPC does by calls of its own, sharing
 * memory, takes two more messages here; both are followed by `path_bytes` bytes.
 *
 * `src/pipe.rs` says the same in Rust.
 */
#ifndef ESTREAM_PIPE_H
#define ESTREAM_PIPE_H

#include <stdint.h>

#define PIPE_MAP_MAGIC 0x2050414du   /* "MAP " */
#define PIPE_UNMAP_MAGIC 0x50414d55u /* "UMAP" */
#define PIPE_MAX_HANDLES 64u
#define PIPE_MAX_PATH_BYTES 4096u

/* Makes the file of that name the memory `handle`, or forgets it (path_bytes = 0). */
struct pipe_map {
    uint32_t magic;
    uint32_t sequence;
    uint32_t handle;
    uint32_t path_bytes;
};

_Static_assert(sizeof(struct pipe_map) == 16, "map");

#endif
