/* mat.h by the matrix unit. Its instructions are in this file alone, as text: no compiler here can
 * assemble them, so it is compiled to assembly and no further.
 *
 * An instruction pair multiplies up to 32 neighbouring tiles of each operand and adds to the
 * accumulator, which is stored to FP16 once. How wide the accumulator is nobody states.
 */
#include "../mat.h"

#include "../abi.h"

#define TILES_AT_ONCE 32u
/* One pair must not walk over a multiple of this. */
#define BANK_BYTES (4u << 20)
/* A column's scale is the low half of its word, an offset the high half. */
#define SCALE_ONE 0x3c00u

void mat_prepare(void *scales)
{
    volatile uint32_t *words = scales;
    for (uint32_t i = 0; i < ESTREAM_SCALES_BYTES / 4; i++)
        words[i] = i < 32 ? SCALE_ONE : 0;
}

static uint32_t tiles_to_bank(uint32_t address)
{
    return (BANK_BYTES - address % BANK_BYTES) / ESTREAM_TILE_BYTES;
}

static uint32_t lesser(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static void product(uint32_t activations, uint32_t weights, uint32_t k_tiles, uint32_t out)
{
    __asm__ volatile("mxclracc.hf" : : : "memory");
    while (k_tiles > 0) {
        uint32_t tiles = lesser(k_tiles, TILES_AT_ONCE);
        tiles = lesser(tiles, lesser(tiles_to_bank(activations), tiles_to_bank(weights)));
        uint32_t last_byte = tiles * ESTREAM_TILE_BYTES - 1u;
        __asm__ volatile("{ activation.hf = mxmem(%0, %2):deep\n"
                         "  weight.hf = mxmem(%1, %2) }"
                         :
                         : "r"(activations), "r"(weights), "r"(last_byte)
                         : "memory");
        activations += tiles * ESTREAM_TILE_BYTES;
        weights += tiles * ESTREAM_TILE_BYTES;
        k_tiles -= tiles;
    }
    __asm__ volatile("mxmem(%0, %1):after.hf = acc" : : "r"(out), "r"(0) : "memory");
}

void mat_multiply(const void *argument)
{
    const struct mat_job *job = argument;
    uint32_t activations = (uint32_t)job->activations, weights = (uint32_t)job->weights;
    uint32_t out = (uint32_t)job->out, stride = job->k_tiles * ESTREAM_TILE_BYTES;
    __asm__ volatile("bias = mxmem2(%0)" : : "r"(job->scales) : "memory");
    for (uint32_t strip = 0; strip < job->strips; strip++) {
        for (uint32_t row = 0; row < job->rows; row += ESTREAM_TILE) {
            product(activations + row / ESTREAM_TILE * stride, weights + strip * stride,
                    job->k_tiles, out);
            out += ESTREAM_TILE_BYTES;
        }
    }
}
