/* The fused expert operator: lines 8 to 21 of Algorithm 1.
 *
 * An expert's routes are taken in chunks of C. For each, activations are gathered, then two pipelines
 * run one after the other. A step of a pipeline is some strips of one projection; in step j
 *
 *     DMA        brings the weights of step j + 2 to C[j & 1]
 *     vectors    decode those of step j + 1 from C[(j + 1) & 1] to D[(j + 1) & 1], and use the
 *                products of earlier steps
 *     matrix     multiplies by D[j & 1], to an O that nobody else touches
 *
 * Steps of the first pipeline are gate and up in turn. Pair i, steps 2i and 2i + 1, is in O[2i & 3]
 * and its neighbour, and becomes SwiGLU tiles of H in steps 2i + 2 and 2i + 3, half of its rows in
 * each: meanwhile the next pair is multiplied into the other two O. The second pipeline is down,
 * whose products alternate between O[0] and O[1], each added to y one step later.
 */
#include "expert.h"

#include "check.h"
#include "decode.h"
#include "dma.h"
#include "mat.h"
#include "sync.h"
#include "vec.h"
#include "vec_math.h"

#define TILE ESTREAM_TILE

/* A test build leaves out the wait of this number, and must then fail. */
#ifndef ESTREAM_SKIP_WAIT
#define ESTREAM_SKIP_WAIT 0
#endif
enum { WAIT_GATE_UP_DMA = 1, WAIT_GATE_UP_MATRIX = 2, WAIT_DOWN_DMA = 3, WAIT_DOWN_MATRIX = 4 };

/* Regions of VTCM. */
struct regions {
    HVX_Vector *z, *h;
    uint8_t *c[2];
    HVX_Vector *d[2], *o[4];
    void *scales;
};

/* Where the three matrices of one record are: the parameter map. */
struct parameters {
    const uint8_t *gate, *up, *down;
};

/* One chunk of one record's routes. */
struct chunk {
    const struct estream_experts *op;
    const struct route_map *map;
    const struct route_record *records;
    uint32_t rows;
    uint32_t hidden_tiles, ff_tiles;
    const uint8_t *x;
    uint8_t *y;
    struct regions in;
};

/* One pipeline over a chunk. */
struct pipeline {
    const struct chunk *chunk;
    struct {
        const uint8_t *weights;
        uint32_t layout;
    } projection[2];
    uint32_t projections; /* 2: gate and up in turn; 1: down */
    uint32_t strips;      /* of one projection */
    uint32_t step_strips;
    uint32_t steps;
    uint32_t k_tiles;
    uint32_t outputs; /* how many O the steps go around */
    HVX_Vector *activations;
    void (*use)(void *step, uint32_t part, uint32_t parts);
    uint32_t wait_dma, wait_matrix;
    uint32_t ticket[2];
    struct mat_job job[2];
};

/* A step as a work to share. */
struct step {
    const struct pipeline *pipeline;
    uint32_t number;
};

static uint32_t row_tiles(const struct chunk *chunk)
{
    return check_tiles(chunk->rows);
}

static uint32_t first_strip(const struct pipeline *p, uint32_t step)
{
    return step / p->projections * p->step_strips;
}

static uint32_t strips_of(const struct pipeline *p, uint32_t step)
{
    uint32_t rest = p->strips - first_strip(p, step);
    return rest < p->step_strips ? rest : p->step_strips;
}

/* The n-th of `parts` nearly equal parts of `count` begins here. */
static uint32_t part_start(uint32_t count, uint32_t part, uint32_t parts)
{
    return (uint32_t)((uint64_t)count * part / parts);
}

/* Rows m and m + 1 of a tile are one vector; so are those of a chunk, tile by tile. */
static uint32_t row_pairs(const struct chunk *chunk)
{
    return chunk->rows / 2 + chunk->rows % 2;
}

static const float *x_row(const struct chunk *chunk, uint32_t row)
{
    uint64_t at = (uint64_t)chunk->records[row].token * chunk->op->x.stride;
    return (const float *)(chunk->x + at);
}

/* Line 14: rows of x to the tiles of Z. */
static void gather(void *argument, uint32_t part, uint32_t parts)
{
    const struct chunk *chunk = argument;
    uint32_t end = part_start(row_pairs(chunk), part + 1, parts);
    for (uint32_t pair = part_start(row_pairs(chunk), part, parts); pair < end; pair++) {
        const float *even = x_row(chunk, 2 * pair);
        const float *odd = 2 * pair + 1 < chunk->rows ? x_row(chunk, 2 * pair + 1) : 0;
        HVX_Vector *out = chunk->in.z + (uint64_t)(pair / 16) * chunk->hidden_tiles * 16 + pair % 16;
        for (uint32_t k = 0; k < chunk->hidden_tiles; k++) {
            vec_sf below = sf_load(even + TILE * k);
            vec_sf above = odd ? sf_load(odd + TILE * k) : sf_splat(0.0f);
            out[16 * k] = hf_narrow(below, above);
        }
    }
}

/* DMA(j + 2) */
static void load(struct pipeline *p, uint32_t step)
{
    uint32_t projection = step % p->projections;
    uint32_t bytes = decode_tile_bytes(p->projection[projection].layout);
    const uint8_t *weights = p->projection[projection].weights;
    weights += (uint64_t)first_strip(p, step) * p->k_tiles * bytes;
    p->ticket[step & 1] = dma_start(p->chunk->in.c[step & 1], decode_stride(bytes), weights, bytes,
                                    bytes, strips_of(p, step) * p->k_tiles);
}

/* dec(j + 1) */
static void decode(void *argument, uint32_t part, uint32_t parts)
{
    const struct step *step = argument;
    const struct pipeline *p = step->pipeline;
    uint32_t layout = p->projection[step->number % p->projections].layout;
    uint32_t tiles = strips_of(p, step->number) * p->k_tiles;
    uint32_t start = part_start(tiles, part, parts), end = part_start(tiles, part + 1, parts);
    const uint8_t *stored = p->chunk->in.c[step->number & 1];
    stored += (uint64_t)start * decode_stride(decode_tile_bytes(layout));
    decode_tiles(layout, stored, p->chunk->in.d[step->number & 1] + 16u * start, end - start);
}

/* gemm(j) */
static void multiply(struct pipeline *p, uint32_t step)
{
    struct mat_job *job = &p->job[step & 1];
    *job = (struct mat_job){
        .activations = (const uint16_t *)p->activations,
        .weights = (const uint16_t *)p->chunk->in.d[step & 1],
        .out = (uint16_t *)p->chunk->in.o[step % p->outputs],
        .scales = p->chunk->in.scales,
        .rows = p->chunk->rows,
        .k_tiles = p->k_tiles,
        .strips = strips_of(p, step),
    };
    sync_start(mat_multiply, job);
}

/* act(j − 2): half the rows of the pair of steps before the last two, as the number is even or odd,
 * from O to H. */
static void activate(void *argument, uint32_t part, uint32_t parts)
{
    const struct step *step = argument;
    const struct pipeline *p = step->pipeline;
    const struct chunk *chunk = p->chunk;
    if (step->number < 2)
        return;
    uint32_t first = (step->number - 2) & ~1u, half = step->number & 1;
    const HVX_Vector *gate = chunk->in.o[first & 3], *up = chunk->in.o[(first + 1) & 3];
    uint32_t strips = strips_of(p, first);
    uint32_t start = part_start(row_pairs(chunk), half * parts + part, 2 * parts);
    uint32_t end = part_start(row_pairs(chunk), half * parts + part + 1, 2 * parts);
    for (uint32_t strip = 0; strip < strips; strip++) {
        HVX_Vector *h = chunk->in.h + 16u * (first_strip(p, first) + strip);
        for (uint32_t pair = start; pair < end; pair++) {
            uint32_t from = (strip * row_tiles(chunk) + pair / 16) * 16 + pair % 16;
            vec_sf gate_even, gate_odd, up_even, up_odd;
            hf_widen(gate[from], &gate_even, &gate_odd);
            hf_widen(up[from], &up_even, &up_odd);
            h[(uint64_t)(pair / 16) * chunk->ff_tiles * 16 + pair % 16] =
                hf_narrow(sf_mul(vec_silu(gate_even), up_even), sf_mul(vec_silu(gate_odd), up_odd));
        }
    }
}

static void add_row(const struct chunk *chunk, uint32_t row, uint32_t column, vec_sf product)
{
    const struct route_record *record = &chunk->records[row];
    float weight = sf_of_bits(chunk->map->routes[record->route].weight);
    float *y = (float *)(chunk->y + (uint64_t)record->token * chunk->op->y.stride) + column;
    sf_store(y, sf_add(sf_load(y), sf_mul(sf_splat(weight), product)));
}

/* scatter(c − 1): products of the step before, weighted, to y. A part owns tokens, so that a token
 * that comes twice is added to in the order of its routes. */
static void scatter(void *argument, uint32_t part, uint32_t parts)
{
    const struct step *step = argument;
    const struct pipeline *p = step->pipeline;
    const struct chunk *chunk = p->chunk;
    if (step->number < 1)
        return;
    uint32_t before = step->number - 1;
    const HVX_Vector *o = chunk->in.o[before % p->outputs];
    for (uint32_t strip = 0; strip < strips_of(p, before); strip++) {
        uint32_t column = TILE * (first_strip(p, before) + strip);
        for (uint32_t pair = 0; pair < row_pairs(chunk); pair++) {
            uint32_t row = 2 * pair;
            int even_mine = chunk->records[row].token % parts == part;
            int odd_mine = row + 1 < chunk->rows && chunk->records[row + 1].token % parts == part;
            if (!even_mine && !odd_mine)
                continue;
            vec_sf even, odd;
            hf_widen(o[(strip * row_tiles(chunk) + pair / 16) * 16 + pair % 16], &even, &odd);
            if (even_mine)
                add_row(chunk, row, column, even);
            if (odd_mine)
                add_row(chunk, row + 1, column, odd);
        }
    }
}

/* What nothing reads any more; builds that test lifetimes destroy it. First, what was decoded. */
static void end_stored(const struct pipeline *p, uint32_t step)
{
    uint32_t layout = p->projection[step % p->projections].layout;
    uint32_t tiles = strips_of(p, step) * p->k_tiles;
    memory_ended(p->chunk->in.c[step & 1], tiles * decode_stride(decode_tile_bytes(layout)));
}

/* Then what step j multiplied by, and the products that were used in it. */
static void end_products(const struct pipeline *p, uint32_t j)
{
    const struct regions *in = &p->chunk->in;
    uint32_t bytes = p->step_strips * row_tiles(p->chunk) * ESTREAM_TILE_BYTES;
    if (j < p->steps)
        memory_ended(in->d[j & 1], strips_of(p, j) * p->k_tiles * ESTREAM_TILE_BYTES);
    if (p->projections == 1 && j >= 1)
        memory_ended(in->o[(j - 1) % p->outputs], bytes);
    if (p->projections == 2 && j >= 3 && j % 2 == 1) {
        memory_ended(in->o[(j - 3) & 3], bytes);
        memory_ended(in->o[(j - 2) & 3], bytes);
    }
}

/* Lines 16 and 17, 19 and 20: from two steps before the first, as loading needs, to as many behind
 * the last as products take to be used. */
static void run_pipeline(struct pipeline *p)
{
    struct step now = { .pipeline = p }, next = { .pipeline = p };
    uint32_t end = p->steps + p->projections;
    for (uint32_t ahead = 0; ahead < end + 2; ahead++) {
        int begun = ahead >= 2;
        uint32_t j = ahead - 2;
        now.number = j;
        next.number = ahead - 1;
        if (ahead < p->steps)
            load(p, ahead);
        if (begun && j < p->steps)
            multiply(p, j);
        if (begun)
            sync_share(p->use, &now);
        if (ahead >= 1 && next.number < p->steps) {
            if (ESTREAM_SKIP_WAIT != p->wait_dma)
                dma_wait(p->ticket[next.number & 1]);
            sync_share(decode, &next);
            end_stored(p, next.number);
        }
        if (begun && j < p->steps && ESTREAM_SKIP_WAIT != p->wait_matrix)
            sync_finish();
        if (begun)
            end_products(p, j);
    }
}

static void gate_up(const struct chunk *chunk, const struct parameters *w)
{
    const struct estream_experts *op = chunk->op;
    struct pipeline p = {
        .chunk = chunk,
        .projection = { { w->gate, op->gate.layout }, { w->up, op->up.layout } },
        .projections = 2,
        .strips = chunk->ff_tiles,
        .step_strips = op->plan.gate_up_strips,
        .k_tiles = chunk->hidden_tiles,
        .outputs = 4,
        .activations = chunk->in.z,
        .use = activate,
        .wait_dma = WAIT_GATE_UP_DMA,
        .wait_matrix = WAIT_GATE_UP_MATRIX,
    };
    p.steps = 2 * ((p.strips - 1) / p.step_strips + 1);
    run_pipeline(&p);
    memory_ended(chunk->in.z, row_tiles(chunk) * chunk->hidden_tiles * ESTREAM_TILE_BYTES);
}

static void down(const struct chunk *chunk, const struct parameters *w)
{
    const struct estream_experts *op = chunk->op;
    struct pipeline p = {
        .chunk = chunk,
        .projection = { { w->down, op->down.layout } },
        .projections = 1,
        .strips = chunk->hidden_tiles,
        .step_strips = op->plan.down_strips,
        .k_tiles = chunk->ff_tiles,
        .outputs = 2,
        .activations = chunk->in.h,
        .use = scatter,
        .wait_dma = WAIT_DOWN_DMA,
        .wait_matrix = WAIT_DOWN_MATRIX,
    };
    p.steps = (p.strips - 1) / p.step_strips + 1;
    run_pipeline(&p);
    memory_ended(chunk->in.h, row_tiles(chunk) * chunk->ff_tiles * ESTREAM_TILE_BYTES);
}

/* Line 10: p + s · S, checked. */
static enum estream_status plane(const struct memory *memory, struct estream_ref base,
                                 uint32_t place, const struct estream_projection *projection,
                                 const uint8_t **weights)
{
    uint64_t offset = base.offset + (uint64_t)place * projection->stride;
    if (offset > UINT32_MAX)
        return ESTREAM_BAD_RANGE;
    uint8_t *found;
    struct estream_ref at = { .buffer = base.buffer, .offset = (uint32_t)offset };
    enum estream_status status =
        check_ref(memory, at, check_projection_bytes(projection), ESTREAM_ALIGN, &found);
    *weights = found;
    return status;
}

static enum estream_status parameter_map(const struct estream_experts *op,
                                         const struct estream_bank *banks,
                                         const struct memory *memory, uint32_t slot,
                                         struct parameters *w)
{
    const struct estream_bank *bank = &banks[slot / op->bank_slots];
    uint32_t place = slot % op->bank_slots;
    enum estream_status status = plane(memory, bank->gate, place, &op->gate, &w->gate);
    if (status == ESTREAM_OK)
        status = plane(memory, bank->up, place, &op->up, &w->up);
    if (status == ESTREAM_OK)
        status = plane(memory, bank->down, place, &op->down, &w->down);
    return status;
}

static struct regions place_regions(const struct estream_plan *plan, uint8_t *vtcm)
{
    struct regions in = {
        .z = (HVX_Vector *)(vtcm + plan->z),
        .h = (HVX_Vector *)(vtcm + plan->h),
        .scales = vtcm + plan->scales,
    };
    for (int i = 0; i < 2; i++) {
        in.c[i] = vtcm + plan->c[i];
        in.d[i] = (HVX_Vector *)(vtcm + plan->d[i]);
    }
    for (int i = 0; i < 4; i++)
        in.o[i] = (HVX_Vector *)(vtcm + plan->o[i]);
    return in;
}

/* Lines 9 to 20 for one entry. */
static void run_entry(struct chunk *chunk, uint32_t entry, const struct parameters *w)
{
    const struct route_map *map = chunk->map;
    uint32_t segment = map->segment[entry];
    uint32_t end = map->offset[segment + 1];
    for (uint32_t at = map->offset[segment]; at < end; at += chunk->rows) {
        uint32_t rest = end - at;
        chunk->records = map->records + at;
        chunk->rows = rest < chunk->op->plan.rows ? rest : chunk->op->plan.rows;
        sync_share(gather, chunk);
        gate_up(chunk, w);
        down(chunk, w);
    }
}

struct route_fault expert_run(const struct estream_experts *op, const struct memory *memory)
{
    struct route_fault fault = { .status = check_experts(op, memory), .detail = 0 };
    uint8_t *x, *y, *routes, *entries, *shared_banks;
    if (fault.status == ESTREAM_OK)
        fault.status = check_rows(memory, &op->x, op->tokens, &x);
    if (fault.status == ESTREAM_OK)
        fault.status = check_rows(memory, &op->y, op->tokens, &y);
    if (fault.status == ESTREAM_OK)
        fault.status = check_ref(memory, op->routes,
                                 (uint64_t)op->route_count * sizeof(struct estream_route), 8, &routes);
    if (fault.status == ESTREAM_OK)
        fault.status = check_ref(memory, op->entries,
                                 (uint64_t)op->entry_count * sizeof(struct estream_entry), 8, &entries);
    if (fault.status == ESTREAM_OK)
        fault.status = check_ref(memory, op->banks,
                                 (uint64_t)op->bank_count * sizeof(struct estream_bank), 8,
                                 &shared_banks);
    if (fault.status != ESTREAM_OK)
        return fault;

    struct route_map map;
    fault = route_build(op, (const struct estream_route *)routes,
                        (const struct estream_entry *)entries, memory, &map);
    if (fault.status != ESTREAM_OK)
        return fault;
    struct estream_bank banks[ESTREAM_MAX_BANKS];
    memory_copy(banks, shared_banks, op->bank_count * (uint32_t)sizeof banks[0]);
    struct parameters w;
    for (uint32_t p = 0; p < op->entry_count; p++) {
        fault = (struct route_fault){
            .status = parameter_map(op, banks, memory, map.entries[p].slot, &w),
            .detail = p,
        };
        if (fault.status != ESTREAM_OK)
            return fault;
    }

    struct chunk chunk = {
        .op = op,
        .map = &map,
        .hidden_tiles = check_tiles(op->gate.cols),
        .ff_tiles = check_tiles(op->gate.rows),
        .x = x,
        .y = y,
        .in = place_regions(&op->plan, memory->vtcm),
    };
    mat_prepare(chunk.in.scales);
    for (uint32_t p = 0; p < op->entry_count; p++) {
        parameter_map(op, banks, memory, map.entries[p].slot, &w);
        run_entry(&chunk, p, &w);
    }
    return (struct route_fault){ .status = ESTREAM_OK, .detail = 0 };
}
