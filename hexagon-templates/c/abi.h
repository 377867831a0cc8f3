/* What the host sends to the kernels, and what comes back: kernel ABI 1.
 *
 * A batch is one message: the header, its buffers, its operators, back to back.
 *
 *     estream_batch | buffer_count × estream_buffer | op_count × an operator
 *
 * Every field is a little-endian u32 (two u16 begin an operator), so no compiler pads anything.
 * No address is ever sent: an operand is a buffer of the batch and an offset in it. Reals are the
 * bits of a binary32. A field called `zero` is 0 and checked, so that it can mean something later.
 *
 * `src/abi.rs` says the same in Rust; a test holds the two together, name by name.
 */
#ifndef ESTREAM_ABI_H
#define ESTREAM_ABI_H

#include <stddef.h>
#include <stdint.h>

#define ESTREAM_MAGIC 0x4d525453u /* "STRM" */
#define ESTREAM_VERSION 1u

/* Limits of one batch. */
#define ESTREAM_MAX_BUFFERS 16u
#define ESTREAM_MAX_OPS 256u
#define ESTREAM_MAX_BATCH_BYTES 65536u

/* Limits of one experts operator. */
#define ESTREAM_MAX_EXPERTS 4096u
#define ESTREAM_MAX_ENTRIES 4096u
#define ESTREAM_MAX_BANKS 64u
#define ESTREAM_MAX_TOKENS 65536u
#define ESTREAM_MAX_ROUTES 1048576u

/* Rows and columns of a tile, and the bytes of one that the matrix unit reads. */
#define ESTREAM_TILE 32u
#define ESTREAM_TILE_BYTES 2048u
/* What operands in memory are aligned to: a vector. */
#define ESTREAM_ALIGN 128u
/* Bytes of the matrix unit's column scales. */
#define ESTREAM_SCALES_BYTES 256u
/* An operand that is not there. */
#define ESTREAM_NONE 0xffffffffu

/* How a batch ended. */
enum estream_status {
    ESTREAM_OK = 0,
    ESTREAM_BAD_MESSAGE = 1, /* magic, version, sizes, counts, a field that should be 0 */
    ESTREAM_BAD_BUFFER = 2,  /* a buffer that is not mapped, or is shorter than said */
    ESTREAM_BAD_KIND = 3,    /* an operator that these kernels do not have */
    ESTREAM_BAD_RANGE = 4,   /* an operand that leaves its buffer, or an id that leaves its table */
    ESTREAM_BAD_ALIGN = 5,   /* an offset or stride that is no whole number of vectors */
    ESTREAM_BAD_SHAPE = 6,   /* operands that do not fit each other, or a limit */
    ESTREAM_BAD_LAYOUT = 7,  /* a layout that the operator does not read */
    ESTREAM_BAD_PLAN = 8,    /* regions that overlap, leave the VTCM, or are misaligned */
    ESTREAM_NO_MEMORY = 9,   /* shapes or lists that VTCM or private memory is too small for */
    ESTREAM_BAD_ROUTE = 10,  /* a route of no such token or expert, an entry of no such slot */
    ESTREAM_NOT_FINITE = 11, /* a score that is infinite or not a number */
};

/* Layouts of `schemas/src/layout.rs`, version 1. */
enum estream_layout {
    ESTREAM_Q4_0_DIRECT = 1,
    ESTREAM_Q4_0_PAIR = 2,
    ESTREAM_Q4_1_DIRECT = 3,
    ESTREAM_Q4_1_PAIR = 4,
    ESTREAM_IQ4_NL_DIRECT = 5,
    ESTREAM_IQ4_NL_PAIR = 6,
    ESTREAM_MXFP4_DIRECT = 7,
    ESTREAM_MXFP4_PAIR = 8,
    ESTREAM_Q8_0 = 9,
    ESTREAM_F16 = 10,
    ESTREAM_BF16 = 11,
    ESTREAM_F32 = 12,
    /* Rows as GGUF stores them: tables that are read a row at a time. */
    ESTREAM_F16_ROWS = 13,
    ESTREAM_BF16_ROWS = 14,
    ESTREAM_F32_ROWS = 15,
    ESTREAM_Q6_K_ROWS = 16,
};

enum estream_kind {
    ESTREAM_KIND_EMBED = 1,
    ESTREAM_KIND_LINEAR = 2, /* the head too */
    ESTREAM_KIND_RMS_NORM = 3,
    ESTREAM_KIND_ROPE = 4,
    ESTREAM_KIND_ATTENTION = 5,
    ESTREAM_KIND_MLA = 6,
    ESTREAM_KIND_SHORT_CONV = 7,
    ESTREAM_KIND_ROUTER = 8,
    ESTREAM_KIND_EXPERTS = 9, /* a dense network too: one expert, to which all tokens go */
    ESTREAM_KIND_ADD = 10,
};

struct estream_batch {
    uint32_t magic;
    uint32_t version;
    uint32_t bytes; /* of the whole message */
    uint32_t sequence;
    uint32_t buffer_count;
    uint32_t op_count;
    uint32_t zero[2];
};

struct estream_buffer {
    uint32_t handle; /* by which the transport knows the memory */
    uint32_t bytes;
};

struct estream_reply {
    uint32_t magic;
    uint32_t version;
    uint32_t sequence;
    uint32_t status; /* enum estream_status */
    uint32_t op;     /* the first operator that failed, else ESTREAM_NONE */
    uint32_t detail; /* what of it: a route, an entry, a row */
    uint32_t zero[2];
};

/* How every operator begins. */
struct estream_op {
    uint16_t kind;
    uint16_t bytes; /* of the operator, this included: a multiple of 8 */
    uint32_t zero;
};

struct estream_ref {
    uint32_t buffer; /* of the batch, or ESTREAM_NONE */
    uint32_t offset;
};

/* A matrix of numbers, f32, one row a token. Rows are vectors: whole ones, with zeros behind
 * `width`, at a stride that is a multiple of ESTREAM_ALIGN. */
struct estream_rows {
    struct estream_ref at;
    uint32_t stride; /* bytes from row to row */
    uint32_t width;  /* elements */
};

/* A weight matrix where it lies: `rows` output rows of `cols` elements. */
struct estream_weight {
    struct estream_ref at;
    uint32_t layout; /* enum estream_layout */
    uint32_t rows;
    uint32_t cols;
    uint32_t zero;
};

/* out[t] = scale · table[ids[t]] */
struct estream_embed {
    struct estream_op op;
    uint32_t tokens;
    uint32_t scale;
    struct estream_ref ids; /* u32 */
    struct estream_rows out;
    struct estream_weight table;
};

/* out = scale · (x · weightᵀ) (+ bias) */
struct estream_linear {
    struct estream_op op;
    uint32_t tokens;
    uint32_t scale;
    struct estream_rows x;
    struct estream_rows out;
    struct estream_weight weight;
    struct estream_ref bias; /* f32, or none */
};

/* out = weight · x · 1/sqrt(mean(x²) + eps), one mean every `weight_len` elements of a row. */
struct estream_rms_norm {
    struct estream_op op;
    uint32_t tokens;
    uint32_t eps;
    struct estream_rows x;
    struct estream_rows out; /* may be x */
    struct estream_ref weight; /* f32 */
    uint32_t weight_len;
    uint32_t zero;
};

/* Rotates the last `dims` elements of every head, in place. The table has a row a token:
 * dims/2 cosines, dims/2 sines, made by the host. */
struct estream_rope {
    struct estream_op op;
    uint32_t tokens;
    uint32_t heads;
    uint32_t dims;
    uint32_t adjacent; /* 1: 2i with 2i + 1; 0: i with i + dims/2 */
    struct estream_rows x;
    struct estream_rows table;
};

/* Causal attention of `tokens` queries, the first at `position`, over keys and values of
 * position 0 and on. */
struct estream_attention {
    struct estream_op op;
    uint32_t tokens;
    uint32_t position;
    uint32_t heads;
    uint32_t kv_heads;
    uint32_t key_dim;
    uint32_t value_dim;
    uint32_t scale;
    uint32_t zero;
    struct estream_rows q;
    struct estream_rows k;
    struct estream_rows v;
    struct estream_rows out;
};

/* The same, keys and values being products of a latent row. */
struct estream_mla {
    struct estream_op op;
    uint32_t tokens;
    uint32_t position;
    uint32_t heads;
    uint32_t key_dim; /* of a head: what does not rotate, then what does */
    uint32_t value_dim;
    uint32_t scale;
    struct estream_rows q;
    struct estream_rows latent;
    struct estream_rows k_pe;
    struct estream_rows out;
    struct estream_weight kv_b;
};

/* out[t] = C ⊙ Σ_k weight[:, k] ⊙ (B ⊙ X)[t − taps + 1 + k]; a row of x is B | C | X. */
struct estream_short_conv {
    struct estream_op op;
    uint32_t tokens;
    uint32_t taps;
    struct estream_rows x;
    struct estream_rows out;
    struct estream_rows state; /* taps − 1 rows: B ⊙ X before the first, then before the next */
    struct estream_ref weight; /* f32, [width, taps] */
};

/* Chooses `top_k` experts for every token: the larger score, then the lower id. */
struct estream_router {
    struct estream_op op;
    uint32_t tokens;
    uint32_t top_k;
    uint32_t sigmoid;     /* 1: each expert on its own; 0: softmax */
    uint32_t after_top_k; /* 1: scores are computed over the chosen; 0: before the choice */
    uint32_t renormalise; /* 1: weights are divided by their sum + epsilon */
    uint32_t epsilon;
    uint32_t scale;
    uint32_t zero;
    struct estream_rows x;
    struct estream_weight weight;
    struct estream_ref selection_bias; /* f32, or none */
    struct estream_ref routes;         /* out: tokens · top_k × estream_route, by token */
    struct estream_rows logits;        /* out: what was chosen from */
};

/* out += scale · x */
struct estream_add {
    struct estream_op op;
    uint32_t tokens;
    uint32_t scale;
    struct estream_rows x;
    struct estream_rows out;
};

/* (e, t, α) of Algorithm 1. */
struct estream_route {
    uint32_t expert;
    uint32_t token;
    uint32_t weight;
};

/* The placement Φ: a record that is resident. An expert of S shards has S neighbouring entries. */
struct estream_entry {
    uint32_t expert;
    uint32_t slot;
};

/* Bases p of the parameter planes of one bank. */
struct estream_bank {
    struct estream_ref gate;
    struct estream_ref up;
    struct estream_ref down;
};

/* One projection of a record: its plane's stride S, and what is at base + slot · S. */
struct estream_projection {
    uint32_t layout; /* enum estream_layout */
    uint32_t rows;
    uint32_t cols;
    uint32_t stride;
};

/* Constants of a template: what the VTCM planner decides for a shape class and an architecture.
 * Regions are offsets in VTCM; how long each is follows from the shapes, in tiles of 2,048 bytes:
 *
 *     z    rows/32 · hidden/32            gathered activations, FP16
 *     h    rows/32 · ff/32                SwiGLU results, FP16
 *     c[i] strips · k/32, at raw strides  weights as they are stored
 *     d[i] strips · k/32                  weights as the matrix unit reads them
 *     o[i] strips · rows/32               products
 *
 * where strips and k are those of gate and up (k = hidden) or of down (k = ff), whichever takes
 * more. The raw stride of a tile is its bytes rounded up to 128. down uses o[0] and o[1] alone, so
 * o[2] and o[3] need not hold its products. No two regions overlap; z, h, d and o begin at multiples
 * of 2,048, c at multiples of 128, the 256 bytes of scales at one of 256.
 */
struct estream_plan {
    uint32_t rows;           /* C: routes of a chunk, a multiple of 32 */
    uint32_t gate_up_strips; /* strips of 32 output columns that one step takes of gate, or of up */
    uint32_t down_strips;    /* and of down */
    uint32_t vtcm_bytes;     /* every region ends at or before this */
    uint32_t z;
    uint32_t h;
    uint32_t c[2];
    uint32_t d[2];
    uint32_t o[4];
    uint32_t scales;
    uint32_t zero;
};

/* y[t] += α · down(silu(gate · x[t]) ⊙ (up · x[t])) for every route of an expert that has an
 * entry, entry by entry in the order of the list; routes of other experts are left alone. */
struct estream_experts {
    struct estream_op op;
    uint32_t tokens;
    uint32_t experts; /* ids are below this */
    uint32_t route_count;
    uint32_t entry_count;
    uint32_t bank_count;
    uint32_t bank_slots; /* slot s is place s % bank_slots of bank s / bank_slots */
    struct estream_ref routes;
    struct estream_ref entries;
    struct estream_ref banks;
    struct estream_rows x;
    struct estream_rows y;
    struct estream_projection gate;
    struct estream_projection up;
    struct estream_projection down;
    struct estream_plan plan;
};

_Static_assert(sizeof(struct estream_batch) == 32, "batch");
_Static_assert(sizeof(struct estream_buffer) == 8, "buffer");
_Static_assert(sizeof(struct estream_reply) == 32, "reply");
_Static_assert(sizeof(struct estream_op) == 8, "op");
_Static_assert(sizeof(struct estream_ref) == 8, "ref");
_Static_assert(sizeof(struct estream_rows) == 16, "rows");
_Static_assert(sizeof(struct estream_weight) == 24, "weight");
_Static_assert(sizeof(struct estream_embed) == 64, "embed");
_Static_assert(sizeof(struct estream_linear) == 80, "linear");
_Static_assert(sizeof(struct estream_rms_norm) == 64, "rms_norm");
_Static_assert(sizeof(struct estream_rope) == 56, "rope");
_Static_assert(sizeof(struct estream_attention) == 104, "attention");
_Static_assert(sizeof(struct estream_mla) == 120, "mla");
_Static_assert(sizeof(struct estream_short_conv) == 72, "short_conv");
_Static_assert(sizeof(struct estream_router) == 112, "router");
_Static_assert(sizeof(struct estream_add) == 48, "add");
_Static_assert(sizeof(struct estream_route) == 12, "route");
_Static_assert(sizeof(struct estream_entry) == 8, "entry");
_Static_assert(sizeof(struct estream_bank) == 24, "bank");
_Static_assert(sizeof(struct estream_projection) == 16, "projection");
_Static_assert(sizeof(struct estream_plan) == 64, "plan");
_Static_assert(sizeof(struct estream_experts) == 200, "experts");

#endif
