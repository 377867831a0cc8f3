/* Rows are taken in chunks, as many as VTCM holds; for each, a step is one strip of 32 output
 * columns. In step j
 *
 *     DMA        brings the weights of step j + 1 to C[(j + 1) & 1]
 *     vectors    decode those of step j from C[j & 1] to D[j & 1], then write the products of step
 *                j − 1 from O[(j − 1) & 1] to the rows
 *     matrix     multiplies by D[j & 1], to O[j & 1], while those products are written and the
 *                weights of step j + 1 are decoded
 *
 * Weights that are stored in rows are no tiles yet; they are decoded from where they lie.
 */
#include "product.h"

#include "check.h"
#include "decode.h"
#include "dma.h"
#include "mat.h"
#include "ops.h"
#include "pool.h"
#include "rows.h"
#include "sync.h"
#include "tiles.h"
#include "waits.h"

#define TILE ESTREAM_TILE

/* Places in VTCM. */
struct places {
    HVX_Vector *a; /* activations */
    uint8_t *c[2]; /* weights as they are stored */
    HVX_Vector *d[2], *o[2];
    void *scales;
    uint32_t row_tiles; /* of a chunk, at most */
};

/* One chunk of rows. */
struct chunk {
    const struct product *product;
    struct places in;
    uint32_t first, rows;
    uint32_t step; /* the one that vectors work on */
    uint32_t ticket[2];
    struct mat_job job[2];
};

static uint32_t row_pairs(const struct chunk *chunk)
{
    return chunk->rows / 2 + chunk->rows % 2;
}

static enum estream_status place(const struct product *p, const struct memory *memory,
                                 struct places *in)
{
    struct pool vtcm = pool_of_vtcm(memory);
    uint64_t strip_bytes = (uint64_t)p->weight->k_tiles * ESTREAM_TILE_BYTES;
    uint32_t stride = decode_stride(p->weight->tile_bytes);
    in->scales = pool_take(&vtcm, ESTREAM_SCALES_BYTES);
    for (int i = 0; i < 2; i++) {
        in->c[i] = pool_take(&vtcm, (uint64_t)p->weight->k_tiles * stride);
        in->d[i] = pool_take(&vtcm, strip_bytes);
        if (!in->scales || !in->c[i] || !in->d[i])
            return ESTREAM_NO_MEMORY;
    }
    /* A tile of rows takes its activations, and one tile of products of either step. */
    uint64_t fit = vtcm.left / (strip_bytes + 2 * ESTREAM_TILE_BYTES);
    uint32_t wanted = check_tiles(p->tokens);
    in->row_tiles = fit < wanted ? (uint32_t)fit : wanted;
    if (in->row_tiles == 0)
        return ESTREAM_NO_MEMORY;
    in->a = pool_take(&vtcm, in->row_tiles * strip_bytes);
    for (int i = 0; i < 2; i++)
        in->o[i] = pool_take(&vtcm, (uint64_t)in->row_tiles * ESTREAM_TILE_BYTES);
    return ESTREAM_OK;
}

static const float *x_row(const struct chunk *chunk, uint32_t row)
{
    const struct product *p = chunk->product;
    return row < chunk->rows ? rows_of(p->x, p->x_stride, chunk->first + row) : 0;
}

static void gather(void *argument, uint32_t part, uint32_t parts)
{
    const struct chunk *chunk = argument;
    const struct weight *w = chunk->product->weight;
    uint32_t end = op_part(row_pairs(chunk), part + 1, parts);
    for (uint32_t pair = op_part(row_pairs(chunk), part, parts); pair < end; pair++) {
        const float *even = x_row(chunk, 2 * pair), *odd = x_row(chunk, 2 * pair + 1);
        HVX_Vector *out = chunk->in.a + (uint64_t)(pair / 16) * w->k_tiles * 16 + pair % 16;
        for (uint32_t k = 0; k < w->k_tiles; k++)
            out[16 * k] = tiles_pair(even, odd, TILE * k, w->cols, 1.0f);
    }
}

static void load(struct chunk *chunk, uint32_t step)
{
    const struct product *p = chunk->product;
    uint32_t bytes = p->weight->tile_bytes;
    if (bytes != 0)
        chunk->ticket[step & 1] =
            dma_start(chunk->in.c[step & 1], decode_stride(bytes),
                      weight_strip(p->weight, p->first_strip + step), bytes, bytes,
                      p->weight->k_tiles);
}

/* Tile `piece` of a strip that is stored in rows; past the last row, zeros. */
static void decode_rows(const struct weight *w, uint32_t strip, uint32_t piece, HVX_Vector *out)
{
    float values[TILE];
    for (uint32_t n = 0; n < TILE; n++) {
        int there = TILE * strip + n < w->rows;
        if (there)
            weight_read(w, TILE * strip + n, piece, values);
        tiles_column((uint16_t *)out, n, 0, there ? values : 0, TILE);
    }
}

static void decode(void *argument, uint32_t part, uint32_t parts)
{
    const struct chunk *chunk = argument;
    const struct product *p = chunk->product;
    const struct weight *w = p->weight;
    uint32_t start = op_part(w->k_tiles, part, parts), end = op_part(w->k_tiles, part + 1, parts);
    HVX_Vector *out = chunk->in.d[chunk->step & 1];
    const uint8_t *stored = chunk->in.c[chunk->step & 1];
    if (w->tile_bytes != 0)
        decode_tiles(w->layout, stored + (uint64_t)start * decode_stride(w->tile_bytes),
                     out + 16u * start, end - start);
    else
        for (uint32_t piece = start; piece < end; piece++)
            decode_rows(w, p->first_strip + chunk->step, piece, out + 16u * piece);
}

static void multiply(struct chunk *chunk, uint32_t step)
{
    struct mat_job *job = &chunk->job[step & 1];
    *job = (struct mat_job){
        .activations = (const uint16_t *)chunk->in.a,
        .weights = (const uint16_t *)chunk->in.d[step & 1],
        .out = (uint16_t *)chunk->in.o[step & 1],
        .scales = chunk->in.scales,
        .rows = chunk->rows,
        .k_tiles = chunk->product->weight->k_tiles,
        .strips = 1,
    };
    sync_start(mat_multiply, job);
}

/* Products of the step before to the rows of `out`. */
static void store(void *argument, uint32_t part, uint32_t parts)
{
    const struct chunk *chunk = argument;
    const struct product *p = chunk->product;
    uint32_t step = chunk->step - 1, column = TILE * (p->first_strip + step);
    uint32_t count = rows_piece(p->weight->rows, column);
    const HVX_Vector *o = chunk->in.o[step & 1];
    vec_sf scale = sf_splat(p->scale), bias = sf_splat(0.0f);
    if (p->bias)
        bias = rows_load(p->bias + column, 1, count);
    uint32_t end = op_part(row_pairs(chunk), part + 1, parts);
    for (uint32_t pair = op_part(row_pairs(chunk), part, parts); pair < end; pair++) {
        vec_sf product[2];
        hf_widen(o[pair], &product[0], &product[1]);
        for (uint32_t odd = 0; odd < 2 && 2 * pair + odd < chunk->rows; odd++) {
            uint32_t t = chunk->first + 2 * pair + odd;
            float *out = rows_at(p->out, p->out_stride, t) + TILE * step;
            vec_sf y = sf_mul(product[odd], scale);
            rows_store(out, 1, count, p->bias ? sf_add(y, bias) : y);
            rows_end(out, count);
        }
    }
}

static void run_chunk(struct chunk *chunk)
{
    const struct product *p = chunk->product;
    sync_share(gather, chunk);
    load(chunk, 0);
    for (uint32_t step = 0; step <= p->strips; step++) {
        chunk->step = step;
        if (step + 1 < p->strips)
            load(chunk, step + 1);
        if (step < p->strips) {
            if (p->weight->tile_bytes != 0 && ESTREAM_SKIP_WAIT != WAIT_PRODUCT_DMA)
                dma_wait(chunk->ticket[step & 1]);
            sync_share(decode, chunk);
        }
        if (ESTREAM_SKIP_WAIT != WAIT_PRODUCT_MATRIX)
            sync_finish();
        if (step < p->strips)
            multiply(chunk, step);
        if (step > 0)
            sync_share(store, chunk);
    }
}

enum estream_status product_run(const struct product *product, const struct memory *memory)
{
    struct chunk chunk = { .product = product };
    enum estream_status status = place(product, memory, &chunk.in);
    if (status != ESTREAM_OK)
        return status;
    mat_prepare(chunk.in.scales);
    for (uint32_t first = 0; first < product->tokens; first += chunk.rows) {
        uint32_t rest = product->tokens - first, most = TILE * chunk.in.row_tiles;
        chunk.first = first;
        chunk.rows = rest < most ? rest : most;
        run_chunk(&chunk);
    }
    return ESTREAM_OK;
}
