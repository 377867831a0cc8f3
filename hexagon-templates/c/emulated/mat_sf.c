/* The matrix unit's contract, one number at a time: exact products of FP16 operands, added in
 * binary32 in ascending k from +0, rounded to FP16 at the end. */
#include "../mat.h"
#include "../numerics.h"

#define TILE 32u

void mat_prepare(void *scales)
{
    (void)scales; /* the unit's columns are not scaled here */
}

/* Element (k, n) of a weight tile to weight[k][n]. */
static void widen(const uint16_t *tile, float weight[TILE][TILE])
{
    for (uint32_t k = 0; k < TILE; k++)
        for (uint32_t n = 0; n < TILE; n++)
            weight[k][n] = hf_to_sf(tile[mat_weight_index(k, n)]);
}

/* Adds the products of one tile. Zero activations are passed over: their products are zeros, which
 * change no sum that began at +0. */
static void add(const uint16_t *activations, float weight[TILE][TILE], uint32_t rows,
                float sum[TILE][TILE])
{
    for (uint32_t m = 0; m < rows; m++) {
        for (uint32_t k = 0; k < TILE; k++) {
            uint16_t half = activations[mat_activation_index(m, k)];
            if ((half & 0x7fffu) == 0)
                continue;
            float a = hf_to_sf(half);
            for (uint32_t n = 0; n < TILE; n++)
                sum[m][n] = sum[m][n] + a * weight[k][n];
        }
    }
}

static void product(const struct mat_job *job, uint32_t strip, uint32_t row_tile, uint32_t rows,
                    uint16_t *out)
{
    float sum[TILE][TILE] = { { 0 } }, weight[TILE][TILE];
    for (uint32_t k = 0; k < job->k_tiles; k++) {
        widen(job->weights + ((uint64_t)strip * job->k_tiles + k) * MAT_TILE_HALVES, weight);
        add(job->activations + ((uint64_t)row_tile * job->k_tiles + k) * MAT_TILE_HALVES, weight,
            rows, sum);
    }
    for (uint32_t m = 0; m < rows; m++)
        for (uint32_t n = 0; n < TILE; n++)
            out[mat_activation_index(m, n)] = hf_of_sf(sum[m][n]);
}

void mat_multiply(const void *argument)
{
    const struct mat_job *job = argument;
    uint16_t *out = job->out;
    for (uint32_t strip = 0; strip < job->strips; strip++) {
        for (uint32_t row = 0; row < job->rows; row += TILE) {
            uint32_t rows = job->rows - row < TILE ? job->rows - row : TILE;
            product(job, strip, row / TILE, rows, out);
            out += MAT_TILE_HALVES;
        }
    }
}
