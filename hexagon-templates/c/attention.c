/* Causal attention on tiles, 32 queries at a time: all scores of a query are in VTCM at once, so that
 * its weights are known before they meet a value, and every sum runs over the positions as they are.
 *
 *     Q   queries times `scale`, FP16                     activations [key_dim/32]
 *     K   keys, FP16, transposed                          weights [positions/32][key_dim/32]
 *     S   scores, then softmax weights in their place     products, activations [positions/32]
 *     V   values, FP16                                    weights [value_dim/32][positions/32]
 *     O   32 columns of the result                        products [1]
 *
 * A product (m, n) and an activation (m, k) lie in a tile alike: the scores of a strip of 32 keys are
 * where a tile of 32 elements of the next reduction is wanted. K and V are there for all queries if
 * VTCM holds them; if not, as much of K as fits, and a strip of V, for 32 queries.
 */
#include "attention.h"

#include "check.h"
#include "mat.h"
#include "ops.h"
#include "pool.h"
#include "rows.h"
#include "sync.h"
#include "tiles.h"
#include "vec_math.h"
#include "waits.h"

#define TILE ESTREAM_TILE
#define INFINITE 0x7f800000u

/* 32 queries, or fewer; a row is a query of one head, rows of a token are neighbours. */
struct block {
    const struct attention *of;
    uint32_t first_row, rows;
    uint32_t key_tiles; /* that its last query sees */
    HVX_Vector *q, *k, *s, *v, *o;
    void *scales;
    int all;          /* whether K and V hold everything */
    uint32_t k_fit;   /* tiles of keys that K holds */
    uint32_t v_tiles; /* tiles of a strip of V */
    /* What vectors work on: tiles of keys, or a strip of values. */
    uint32_t first, count, strip;
    struct mat_job scoring, adding;
};

static uint32_t positions(const struct attention *a)
{
    return a->position + a->tokens;
}

static uint32_t dim_tiles(const struct block *b)
{
    return check_tiles(b->of->key_dim);
}

static uint32_t row_pairs(const struct block *b)
{
    return b->rows / 2 + b->rows % 2;
}

/* Keys that a row of the block sees; none if there is no such row. */
static uint32_t visible(const struct block *b, uint32_t row)
{
    return row < b->rows ? b->of->position + (b->first_row + row) / b->of->heads + 1 : 0;
}

static const float *query(const struct block *b, uint32_t row)
{
    const struct attention *a = b->of;
    uint32_t token = (b->first_row + row) / a->heads, head = (b->first_row + row) % a->heads;
    return row < b->rows ? rows_of(a->q, a->q_stride, token) + head * a->key_dim : 0;
}

/* Q */
static void gather_queries(void *argument, uint32_t part, uint32_t parts)
{
    const struct block *b = argument;
    uint32_t end = op_part(row_pairs(b), part + 1, parts);
    for (uint32_t pair = op_part(row_pairs(b), part, parts); pair < end; pair++)
        for (uint32_t k = 0; k < dim_tiles(b); k++)
            b->q[16 * k + pair] = tiles_pair(query(b, 2 * pair), query(b, 2 * pair + 1), TILE * k,
                                             b->of->key_dim, b->of->scale);
}

/* `count` tiles of K from the one of key 32 · first on. */
static void gather_keys(void *argument, uint32_t part, uint32_t parts)
{
    const struct block *b = argument;
    const struct attention *a = b->of;
    uint32_t end = op_part(TILE * b->count, part + 1, parts);
    for (uint32_t i = op_part(TILE * b->count, part, parts); i < end; i++) {
        uint32_t key = TILE * b->first + i, n = i % TILE, at = 0;
        uint16_t *strip = (uint16_t *)(b->k + (uint64_t)(i / TILE) * dim_tiles(b) * 16);
        int there = key < positions(a);
        for (uint32_t p = 0; p < 2; p++) {
            const struct attention_part *of = &a->key[p];
            const float *from = there && of->at ? rows_of(of->at, of->stride, key) : 0;
            tiles_column(strip, n, at, from, of->width);
            at += of->width;
        }
        tiles_column(strip, n, at, 0, TILE * dim_tiles(b) - at);
    }
}

static const float *value(const struct attention *a, uint32_t key)
{
    return key < positions(a) ? rows_of(a->value.at, a->value.stride, key) : 0;
}

/* `count` tiles of one strip of V. */
static void gather_values(void *argument, uint32_t part, uint32_t parts)
{
    const struct block *b = argument;
    const struct attention *a = b->of;
    HVX_Vector *out = b->v + (b->all ? (uint64_t)b->strip * b->v_tiles * 16 : 0);
    uint32_t end = op_part(16 * b->count, part + 1, parts);
    for (uint32_t pair = op_part(16 * b->count, part, parts); pair < end; pair++)
        out[pair] = tiles_pair(value(a, 2 * pair), value(a, 2 * pair + 1), TILE * b->strip,
                               a->value.width, 1.0f);
}

/* `inside` in the first lanes, `outside` in the others. */
static vec_sf first_lanes(uint32_t count, float inside, float outside)
{
    if (count >= ROWS_LANES)
        return sf_splat(inside);
    _Alignas(HVX_BYTES) float lane[ROWS_LANES];
    for (uint32_t i = 0; i < ROWS_LANES; i++)
        lane[i] = i < count ? inside : outside;
    return sf_load(lane);
}

/* One query's scores, or what becomes of them: every other half of some vectors. */
struct scores {
    const HVX_Vector *pair; /* in the first tile */
    int odd;
    uint32_t visible;
};

static vec_sf scores_of(const struct scores *s, uint32_t tile)
{
    vec_sf row[2];
    hf_widen(s->pair[16 * tile], &row[0], &row[1]);
    return row[s->odd];
}

/* e^(score − greatest), 0 for keys that are not seen. */
static vec_sf powers(const struct scores *s, uint32_t tile, vec_sf greatest)
{
    if (TILE * tile >= s->visible)
        return sf_splat(0.0f);
    vec_sf power = vec_exp(sf_sub(scores_of(s, tile), greatest));
    return sf_mul(power, first_lanes(s->visible - TILE * tile, 1.0f, 0.0f));
}

/* What a query's scores have in common: the greatest, and 1 over the sum of powers. */
static void reduce(const struct scores *s, vec_sf *greatest, vec_sf *inverse)
{
    float infinite = sf_of_bits(INFINITE);
    vec_sf most = sf_splat(-infinite), sums = sf_splat(0.0f);
    uint32_t tiles = check_tiles(s->visible);
    for (uint32_t tile = 0; tile < tiles; tile++) {
        vec_sf limit = first_lanes(s->visible - TILE * tile, infinite, -infinite);
        most = sf_max(most, sf_min(scores_of(s, tile), limit));
    }
    *greatest = sf_splat(rows_greatest(most));
    for (uint32_t tile = 0; tile < tiles; tile++)
        sums = sf_add(sums, powers(s, tile, *greatest));
    *inverse = sf_splat(s->visible > 0 ? 1.0f / rows_sum(sums) : 0.0f);
}

/* S: scores to weights. */
static void weigh(void *argument, uint32_t part, uint32_t parts)
{
    const struct block *b = argument;
    uint32_t end = op_part(row_pairs(b), part + 1, parts);
    for (uint32_t pair = op_part(row_pairs(b), part, parts); pair < end; pair++) {
        struct scores even = { .pair = b->s + pair, .odd = 0, .visible = visible(b, 2 * pair) };
        struct scores odd = { .pair = b->s + pair, .odd = 1, .visible = visible(b, 2 * pair + 1) };
        vec_sf even_greatest, even_inverse, odd_greatest, odd_inverse;
        reduce(&even, &even_greatest, &even_inverse);
        reduce(&odd, &odd_greatest, &odd_inverse);
        for (uint32_t tile = 0; tile < b->key_tiles; tile++) {
            vec_sf below = sf_mul(powers(&even, tile, even_greatest), even_inverse);
            vec_sf above = sf_mul(powers(&odd, tile, odd_greatest), odd_inverse);
            b->s[16 * tile + pair] = hf_narrow(below, above);
        }
    }
}

/* O to 32 columns of the result. */
static void store(void *argument, uint32_t part, uint32_t parts)
{
    const struct block *b = argument;
    const struct attention *a = b->of;
    uint32_t column = TILE * b->strip, count = rows_piece(a->value.width, column);
    uint32_t end = op_part(row_pairs(b), part + 1, parts);
    for (uint32_t pair = op_part(row_pairs(b), part, parts); pair < end; pair++) {
        vec_sf row[2];
        hf_widen(b->o[pair], &row[0], &row[1]);
        for (uint32_t odd = 0; odd < 2 && 2 * pair + odd < b->rows; odd++) {
            uint32_t at = b->first_row + 2 * pair + odd, head = at % a->heads;
            float *out = rows_at(a->out, a->out_stride, at / a->heads) + head * a->value.width;
            rows_store(out + column, 1, count, row[odd]);
        }
    }
}

static void multiply(struct block *b, struct mat_job *job, int wait)
{
    job->scales = b->scales;
    job->rows = b->rows;
    sync_start(mat_multiply, job);
    if (ESTREAM_SKIP_WAIT != wait)
        sync_finish();
}

static void score(struct block *b)
{
    for (b->first = 0; b->first < b->key_tiles; b->first += b->k_fit) {
        b->count = rows_least(b->k_fit, b->key_tiles - b->first);
        if (!b->all)
            sync_share(gather_keys, b);
        b->scoring = (struct mat_job){
            .activations = (const uint16_t *)b->q,
            .weights = (const uint16_t *)b->k,
            .out = (uint16_t *)(b->s + (uint64_t)b->first * 16),
            .k_tiles = dim_tiles(b),
            .strips = b->count,
        };
        multiply(b, &b->scoring, WAIT_SCORES);
    }
}

static void add_values(struct block *b)
{
    uint32_t strips = check_tiles(b->of->value.width);
    for (b->strip = 0; b->strip < strips; b->strip++) {
        b->count = b->key_tiles;
        if (!b->all)
            sync_share(gather_values, b);
        b->adding = (struct mat_job){
            .activations = (const uint16_t *)b->s,
            .weights = (const uint16_t *)(b->v + (b->all ? (uint64_t)b->strip * b->v_tiles * 16 : 0)),
            .out = (uint16_t *)b->o,
            .k_tiles = b->key_tiles,
            .strips = 1,
        };
        multiply(b, &b->adding, WAIT_VALUES);
        sync_share(store, b);
    }
}

/* Places of everything; K and V get what is left. */
static enum estream_status place(struct block *b, const struct memory *memory)
{
    struct pool vtcm = pool_of_vtcm(memory);
    uint64_t dims = dim_tiles(b), strips = check_tiles(b->of->value.width);
    b->v_tiles = check_tiles(positions(b->of));
    b->scales = pool_take(&vtcm, ESTREAM_SCALES_BYTES);
    b->q = pool_take(&vtcm, dims * ESTREAM_TILE_BYTES);
    b->s = pool_take(&vtcm, (uint64_t)b->v_tiles * ESTREAM_TILE_BYTES);
    b->o = pool_take(&vtcm, ESTREAM_TILE_BYTES);
    if (!b->scales || !b->q || !b->s || !b->o)
        return ESTREAM_NO_MEMORY;
    uint64_t tiles = vtcm.left / ESTREAM_TILE_BYTES;
    b->all = b->v_tiles * (dims + strips) <= tiles;
    if (!b->all) {
        if (tiles < b->v_tiles + dims)
            return ESTREAM_NO_MEMORY;
        strips = 1;
    }
    uint64_t fit = (tiles - b->v_tiles * strips) / dims;
    b->k_fit = fit < b->v_tiles ? (uint32_t)fit : b->v_tiles;
    b->v = pool_take(&vtcm, b->v_tiles * strips * ESTREAM_TILE_BYTES);
    b->k = pool_take(&vtcm, b->k_fit * dims * ESTREAM_TILE_BYTES);
    return ESTREAM_OK;
}

/* All of K and V. */
static void gather_all(struct block *b)
{
    b->first = 0;
    b->count = b->v_tiles;
    sync_share(gather_keys, b);
    for (b->strip = 0; b->strip < check_tiles(b->of->value.width); b->strip++)
        sync_share(gather_values, b);
}

enum estream_status attention_run_group(const struct attention *attention,
                                        const struct memory *memory)
{
    struct block b = { .of = attention };
    enum estream_status status = place(&b, memory);
    if (status != ESTREAM_OK)
        return status;
    mat_prepare(b.scales);
    if (b.all)
        gather_all(&b);
    uint32_t rows = attention->tokens * attention->heads;
    for (b.first_row = 0; b.first_row < rows; b.first_row += TILE) {
        b.rows = rows_least(TILE, rows - b.first_row);
        b.key_tiles = check_tiles(visible(&b, b.rows - 1));
        sync_share(gather_queries, &b);
        score(&b);
        sync_share(weigh, &b);
        add_values(&b);
    }
    return ESTREAM_OK;
}

/* Whether `heads` of `dim` elements are as many as `width` says. */
static int heads_fit(uint32_t heads, uint32_t dim, uint32_t width)
{
    return heads != 0 && dim != 0 && (uint64_t)heads * dim == width;
}

struct route_fault attention_run(const struct estream_attention *op, const struct memory *memory)
{
    uint8_t *q = 0, *k = 0, *v = 0, *out = 0;
    uint32_t keys = op->position + op->tokens;
    enum estream_status status = op->zero == 0 ? ESTREAM_OK : ESTREAM_BAD_MESSAGE;
    if (status == ESTREAM_OK && op->position > ESTREAM_MAX_TOKENS)
        status = ESTREAM_BAD_SHAPE;
    if (status == ESTREAM_OK)
        status = check_rows(memory, &op->q, op->tokens, &q);
    if (status == ESTREAM_OK)
        status = check_rows(memory, &op->k, keys, &k);
    if (status == ESTREAM_OK)
        status = check_rows(memory, &op->v, keys, &v);
    if (status == ESTREAM_OK)
        status = check_rows(memory, &op->out, op->tokens, &out);
    if (status == ESTREAM_OK && (!heads_fit(op->heads, op->key_dim, op->q.width) ||
                                 !heads_fit(op->kv_heads, op->key_dim, op->k.width) ||
                                 !heads_fit(op->kv_heads, op->value_dim, op->v.width) ||
                                 !heads_fit(op->heads, op->value_dim, op->out.width) ||
                                 op->heads % op->kv_heads != 0))
        status = ESTREAM_BAD_SHAPE;
    uint32_t group = status == ESTREAM_OK ? op->heads / op->kv_heads : 0;
    for (uint32_t head = 0; head < op->kv_heads && status == ESTREAM_OK; head++) {
        struct attention attention = {
            .tokens = op->tokens,
            .position = op->position,
            .heads = group,
            .key_dim = op->key_dim,
            .scale = sf_of_bits(op->scale),
            .q = q + 4ull * head * group * op->key_dim,
            .q_stride = op->q.stride,
            .out = out + 4ull * head * group * op->value_dim,
            .out_stride = op->out.stride,
            .key = { { k + 4ull * head * op->key_dim, op->k.stride, op->key_dim } },
            .value = { v + 4ull * head * op->value_dim, op->v.stride, op->value_dim },
        };
        status = attention_run_group(&attention, memory);
    }
    for (uint32_t t = 0; t < op->tokens && status == ESTREAM_OK; t++)
        rows_end(rows_at(out, op->out.stride, t), op->out.width);
    return op_fault(status, 0);
}
