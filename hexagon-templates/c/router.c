/* The router: logits, scores, the choice of experts and their weights, in binary32 in every build. */
#include "check.h"
#include "numerics.h"
#include "ops.h"
#include "pool.h"
#include "rows.h"
#include "sync.h"
#include "weight.h"

struct router {
    const struct estream_router *op;
    const uint8_t *x;
    uint8_t *logits;
    /* Private: */
    float *row;    /* of the weight, one expert's */
    float *scores; /* of one token */
    float *choice; /* by which it chooses */
    uint32_t expert;
};

/* One expert's logit for every row of x: sums of products, element k in sum k mod 32, added in
 * halves. */
static void multiply(void *argument, uint32_t part, uint32_t parts)
{
    const struct router *router = argument;
    const struct estream_router *op = router->op;
    uint32_t width = op->x.width, end = op_part(op->tokens, part + 1, parts);
    for (uint32_t t = op_part(op->tokens, part, parts); t < end; t++) {
        const float *x = rows_of(router->x, op->x.stride, t);
        vec_sf sums = sf_splat(0.0f);
        for (uint32_t k = 0; k < width; k += ROWS_LANES) {
            vec_sf piece = rows_load(x + k, 1, rows_piece(width, k));
            sums = sf_add(sums, sf_mul(piece, sf_load(router->row + k)));
        }
        rows_at(router->logits, op->logits.stride, t)[router->expert] = rows_sum(sums);
    }
}

static int is_finite(float x)
{
    return (sf_to_bits(x) & 0x7f800000u) != 0x7f800000u;
}

static int all_finite(const float *x, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (!is_finite(x[i]))
            return 0;
    return 1;
}

/* Sums of few numbers, in order. */
static float sum_of(const float *x, uint32_t count)
{
    float sum = 0.0f;
    for (uint32_t i = 0; i < count; i++)
        sum = sum + x[i];
    return sum;
}

/* Logits to scores, in place. */
static void score(const struct estream_router *op, float *x, uint32_t count)
{
    if (op->sigmoid) {
        for (uint32_t i = 0; i < count; i++)
            x[i] = 1.0f / (1.0f + sf_exp(-x[i]));
        return;
    }
    float greatest = x[0];
    for (uint32_t i = 1; i < count; i++)
        greatest = sf_greater(greatest, x[i]);
    for (uint32_t i = 0; i < count; i++)
        x[i] = sf_exp(x[i] - greatest);
    float sum = sum_of(x, count);
    for (uint32_t i = 0; i < count; i++)
        x[i] = x[i] / sum;
}

/* The expert of the largest score, of equals the lowest, zeros of both signs being equal. */
static uint32_t best(const float *scores, uint32_t count)
{
    uint32_t top = 0;
    for (uint32_t expert = 1; expert < count; expert++)
        if (sf_rank(scores[expert] + 0.0f) > sf_rank(scores[top] + 0.0f))
            top = expert;
    return top;
}

/* Fills in the routes of one token, whose logits are in `scores`; 0 if anything is not finite. */
static int choose(const struct router *router, const float *bias, uint32_t token,
                  struct estream_route *routes, float *weights)
{
    const struct estream_router *op = router->op;
    uint32_t experts = op->weight.rows, top_k = op->top_k;
    float *scores = router->scores, *choice = router->choice;
    if (!all_finite(scores, experts))
        return 0;
    if (!op->after_top_k)
        score(op, scores, experts);
    for (uint32_t expert = 0; expert < experts; expert++)
        choice[expert] = bias ? scores[expert] + bias[expert] : scores[expert];
    if (!all_finite(choice, experts))
        return 0;
    for (uint32_t i = 0; i < top_k; i++) {
        uint32_t expert = best(choice, experts);
        routes[i] = (struct estream_route){ .expert = expert, .token = token };
        weights[i] = scores[expert];
        /* Below every score. */
        choice[expert] = sf_of_bits(0xff800000u);
    }
    if (op->after_top_k)
        score(op, weights, top_k);
    float divisor = 1.0f;
    if (op->renormalise)
        divisor = sum_of(weights, top_k) + sf_of_bits(op->epsilon);
    for (uint32_t i = 0; i < top_k; i++) {
        weights[i] = weights[i] / divisor * sf_of_bits(op->scale);
        routes[i].weight = sf_to_bits(weights[i]);
    }
    return all_finite(weights, top_k);
}

static enum estream_status check(const struct estream_router *op)
{
    if (op->zero != 0 || op->sigmoid > 1 || op->after_top_k > 1 || op->renormalise > 1)
        return ESTREAM_BAD_MESSAGE;
    uint32_t experts = op->weight.rows;
    if (experts == 0 || experts > ESTREAM_MAX_EXPERTS || op->top_k == 0 || op->top_k > experts ||
        op->x.width != op->weight.cols || op->logits.width != experts ||
        (uint64_t)op->tokens * op->top_k > ESTREAM_MAX_ROUTES)
        return ESTREAM_BAD_SHAPE;
    return ESTREAM_OK;
}

struct route_fault router_run(const struct estream_router *op, const struct memory *memory)
{
    struct weight weight;
    uint8_t *x = 0, *logits = 0, *routes = 0, *bias = 0;
    enum estream_status status = check(op);
    uint32_t experts = op->weight.rows;
    uint32_t token_bytes = op->top_k * (uint32_t)sizeof(struct estream_route);
    if (status == ESTREAM_OK)
        status = weight_check(memory, &op->weight, &weight);
    if (status == ESTREAM_OK)
        status = check_rows(memory, &op->x, op->tokens, &x);
    if (status == ESTREAM_OK)
        status = check_rows(memory, &op->logits, op->tokens, &logits);
    if (status == ESTREAM_OK)
        status = check_ref(memory, op->routes, (uint64_t)op->tokens * token_bytes, 8, &routes);
    if (status == ESTREAM_OK && op->selection_bias.buffer != ESTREAM_NONE)
        status = check_ref(memory, op->selection_bias, 4ull * experts, ESTREAM_ALIGN, &bias);
    if (status != ESTREAM_OK)
        return op_fault(status, 0);

    struct pool scratch = pool_of_scratch(memory);
    struct router router = { .op = op, .x = x, .logits = logits };
    router.row = pool_take(&scratch, 4ull * ROWS_LANES * weight.k_tiles);
    router.scores = pool_take(&scratch, 4ull * experts);
    router.choice = pool_take(&scratch, 4ull * experts);
    struct estream_route *chosen = pool_take(&scratch, token_bytes);
    float *weights = pool_take(&scratch, 4ull * op->top_k);
    if (!router.row || !router.scores || !router.choice || !chosen || !weights)
        return op_fault(ESTREAM_NO_MEMORY, experts);

    for (router.expert = 0; router.expert < experts; router.expert++) {
        for (uint32_t piece = 0; piece < weight.k_tiles; piece++)
            weight_read(&weight, router.expert, piece, router.row + ROWS_LANES * piece);
        sync_share(multiply, &router);
    }
    for (uint32_t t = 0; t < op->tokens; t++) {
        float *row = rows_at(logits, op->logits.stride, t);
        rows_end(row, experts);
        memory_copy(router.scores, row, 4 * experts);
        if (!choose(&router, (const float *)bias, t, chosen, weights))
            return op_fault(ESTREAM_NOT_FINITE, t);
        memory_copy(routes + (uint64_t)t * token_bytes, chosen, token_bytes);
    }
    return op_fault(ESTREAM_OK, 0);
}
