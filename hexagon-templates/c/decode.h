/* Tiles as they are stored to tiles as the matrix unit reads them. */
#ifndef ESTREAM_DECODE_H
#define ESTREAM_DECODE_H

#include <stdint.h>

#include "hvx.h"

/* Bytes of a stored tile; 0 for a layout that has no tiles, or that is not known. */
uint32_t decode_tile_bytes(uint32_t layout);

/* Bytes from tile to tile in VTCM: whole vectors. */
static inline uint32_t decode_stride(uint32_t tile_bytes)
{
    return (tile_bytes + 127u) & ~127u;
}

/* Decodes `tiles` tiles, at decode_stride, to `out`, 2,048 bytes each. */
void decode_tiles(uint32_t layout, const uint8_t *stored, HVX_Vector *out, uint32_t tiles);

/* The loops over the nibbles of one tile, 512 bytes to 16 vectors: a nibble is an index into a
 * table, what it finds is multiplied by `scale`, and `offset` added. They stand alone so that their
 * instructions can be counted. */
void decode_direct(const HVX_Vector *restrict stored, HVX_Vector table, HVX_Vector scale,
                   HVX_Vector *restrict out);
void decode_pair(const HVX_Vector *restrict stored, HVX_Vector table, HVX_Vector scale,
                 HVX_Vector *restrict out);
void decode_direct_offset(const HVX_Vector *restrict stored, HVX_Vector table, HVX_Vector scale,
                          HVX_Vector offset, HVX_Vector *restrict out);
void decode_pair_offset(const HVX_Vector *restrict stored, HVX_Vector table, HVX_Vector scale,
                        HVX_Vector offset, HVX_Vector *restrict out);

#endif
