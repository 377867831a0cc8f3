/* Calls one function of the kernels at a time, for tests: `probe`. A request is four words, function,
 * parameter, bytes of input, bytes of output, and the input; the answer is the output.
 */
#include "decode.h"
#include "mat.h"
#include "numerics.h"
#include "port.h"
#include "vec.h"
#include "vec_math.h"

#define BUFFER_BYTES (1u << 22)

/* The same numbers are in tests/kernels/process.rs. */
enum probe_function {
    PROBE_HF_TO_SF = 1,
    PROBE_SQRT = 3,
    PROBE_EXP = 4,
    PROBE_HF_MUL = 5,
    PROBE_HF_ADD = 6,
    PROBE_HF_FROM_INT = 7,
    PROBE_VEC_EXP = 8,
    PROBE_VEC_RECIPROCAL = 9,
    PROBE_VEC_SILU = 10,
    PROBE_DECODE = 11,
    PROBE_MULTIPLY = 12,
    PROBE_NARROW = 13,
    PROBE_WIDEN = 14,
    PROBE_INSTRUCTIONS = 15,
    PROBE_HF_OF_SF_HASH = 16,
};

static _Alignas(2048) uint8_t input[BUFFER_BYTES], output[BUFFER_BYTES];

/* Every instruction of hvx.h on two vectors, one result after another; returns how many. */
static uint32_t instructions(const HVX_Vector *in, HVX_Vector *out)
{
    HVX_Vector a = in[0], b = in[1];
    uint32_t n = 0;
#define ONE(expression) out[n++] = (expression)
#define TWO(expression)                                                                            \
    do {                                                                                           \
        HVX_VectorPair pair = (expression);                                                        \
        out[n++] = Q6_V_lo_W(pair);                                                                \
        out[n++] = Q6_V_hi_W(pair);                                                                \
    } while (0)
    ONE(Q6_V_vsplat_R(-77777));
    ONE(Q6_Vh_vsplat_R(-777));
    ONE(Q6_V_vzero());
    ONE(Q6_V_vand_VV(a, b));
    ONE(Q6_V_vor_VV(a, b));
    ONE(Q6_V_vxor_VV(a, b));
    ONE(Q6_Vw_vadd_VwVw(a, b));
    ONE(Q6_Vw_vsub_VwVw(a, b));
    ONE(Q6_Vh_vadd_VhVh(a, b));
    ONE(Q6_Vh_vsub_VhVh(a, b));
    ONE(Q6_Vw_vmax_VwVw(a, b));
    ONE(Q6_Vw_vmin_VwVw(a, b));
    ONE(Q6_Vh_vmax_VhVh(a, b));
    ONE(Q6_Vh_vmin_VhVh(a, b));
    ONE(Q6_Vh_vabs_Vh(a));
    ONE(Q6_Vw_vabs_Vw(a));
    for (int r = 0; r < 32; r++) {
        ONE(Q6_Vw_vasl_VwR(a, r));
        ONE(Q6_Vw_vasr_VwR(a, r));
        ONE(Q6_Vuw_vlsr_VuwR(a, r));
        ONE(Q6_Vh_vasl_VhR(a, r & 15));
        ONE(Q6_Vuh_vlsr_VuhR(a, r & 15));
        ONE(Q6_Vub_vlsr_VubR(a, r & 7));
        HVX_Vector words = Q6_V_vsplat_R(r), halves = Q6_Vh_vsplat_R(r & 15);
        ONE(Q6_Vw_vasl_VwVw(a, words));
        ONE(Q6_Vw_vlsr_VwVw(a, words));
        ONE(Q6_Vh_vasl_VhVh(a, halves));
        ONE(Q6_Vh_vlsr_VhVh(a, halves));
    }
    ONE(Q6_Vw_vasl_VwVw(a, b));
    ONE(Q6_Vw_vlsr_VwVw(a, b));
    ONE(Q6_Vh_vasl_VhVh(a, b));
    ONE(Q6_Vh_vlsr_VhVh(a, b));
    ONE(Q6_Vuw_vcl0_Vuw(a));
    ONE(Q6_Vuh_vcl0_Vuh(a));
    ONE(Q6_V_vmux_QVV(Q6_Q_vcmp_gt_VwVw(a, b), a, b));
    ONE(Q6_V_vmux_QVV(Q6_Q_vcmp_eq_VwVw(a, Q6_V_vand_VV(a, b)), a, b));
    TWO(Q6_W_vcombine_VV(a, b));
    TWO(Q6_Wuw_vmpy_VuhVuh(a, b));
    ONE(Q6_Vh_vshuffe_VhVh(a, b));
    TWO(Q6_Wuh_vunpack_Vub(a));
    TWO(Q6_Wh_vunpack_Vb(a));
    ONE(Q6_Vb_vshuff_Vb(a));
    TWO(Q6_W_vshuff_VVR(a, b, -1));
    TWO(Q6_W_vshuff_VVR(a, b, -2));
    TWO(Q6_W_vdeal_VVR(a, b, -4));
    TWO(Q6_Wh_vlut16_VbVhR_nomatch(a, b, 0));
    return n;
}

/* One number for the results of a range of inputs: FNV-1a, a result a step. */
static uint64_t hf_of_sf_hash(uint32_t first, uint32_t count)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (uint32_t i = 0; i < count; i++)
        hash = (hash ^ hf_of_sf(sf_of_bits(first + i))) * 0x100000001b3u;
    return hash;
}

static void multiply(uint32_t parameter)
{
    uint32_t rows = parameter & 0xfff, k_tiles = parameter >> 12 & 0xff, strips = parameter >> 20;
    const uint16_t *halves = (const uint16_t *)input;
    struct mat_job job = {
        .activations = halves,
        .weights = halves + ((rows + 31) / 32) * k_tiles * MAT_TILE_HALVES,
        .out = (uint16_t *)output,
        .rows = rows,
        .k_tiles = k_tiles,
        .strips = strips,
    };
    mat_multiply(&job);
}

/* Functions of numbers and vectors, as many as there is output for. */
static int run(uint32_t function, uint32_t parameter, uint32_t out_bytes)
{
    const uint16_t *halves = (const uint16_t *)input;
    const float *numbers = (const float *)input;
    const HVX_Vector *vectors = (const HVX_Vector *)input;
    float *number = (float *)output;
    HVX_Vector *vector = (HVX_Vector *)output;
    uint32_t words = out_bytes / 4, lines = out_bytes / HVX_BYTES;
    switch (function) {
    case PROBE_HF_TO_SF:
        for (uint32_t i = 0; i < words; i++)
            number[i] = hf_to_sf(halves[i]);
        return 1;
    case PROBE_SQRT:
        for (uint32_t i = 0; i < words; i++)
            number[i] = sf_sqrt(numbers[i]);
        return 1;
    case PROBE_EXP:
        for (uint32_t i = 0; i < words; i++)
            number[i] = sf_exp(numbers[i]);
        return 1;
    case PROBE_HF_MUL:
        for (uint32_t i = 0; i < lines; i++)
            vector[i] = hf_mul(vectors[2 * i], vectors[2 * i + 1]);
        return 1;
    case PROBE_HF_ADD:
        for (uint32_t i = 0; i < lines; i++)
            vector[i] = hf_add(vectors[2 * i], vectors[2 * i + 1]);
        return 1;
    case PROBE_HF_FROM_INT:
        for (uint32_t i = 0; i < lines; i++)
            vector[i] = hf_from_int(vectors[i]);
        return 1;
    case PROBE_VEC_EXP:
        for (uint32_t i = 0; i < lines; i++)
            sf_store(number + 32 * i, vec_exp(sf_load(numbers + 32 * i)));
        return 1;
    case PROBE_VEC_RECIPROCAL:
        for (uint32_t i = 0; i < lines; i++)
            sf_store(number + 32 * i, vec_reciprocal(sf_load(numbers + 32 * i)));
        return 1;
    case PROBE_VEC_SILU:
        for (uint32_t i = 0; i < lines; i++)
            sf_store(number + 32 * i, vec_silu(sf_load(numbers + 32 * i)));
        return 1;
    case PROBE_NARROW:
        for (uint32_t i = 0; i < lines; i++)
            vector[i] = hf_narrow(sf_load(numbers + 64 * i), sf_load(numbers + 64 * i + 32));
        return 1;
    case PROBE_WIDEN:
        for (uint32_t i = 0; i < lines / 2; i++) {
            vec_sf even, odd;
            hf_widen(vectors[i], &even, &odd);
            sf_store(number + 64 * i, even);
            sf_store(number + 64 * i + 32, odd);
        }
        return 1;
    case PROBE_DECODE:
        decode_tiles(parameter, input, vector, out_bytes / 2048);
        return 1;
    case PROBE_MULTIPLY:
        multiply(parameter);
        return 1;
    case PROBE_INSTRUCTIONS:
        return instructions(vectors, vector) == lines;
    case PROBE_HF_OF_SF_HASH:
        *(uint64_t *)output = hf_of_sf_hash(*(const uint32_t *)input, parameter);
        return 1;
    default:
        return 0;
    }
}

int port_main(int argc, char **argv)
{
    uint32_t request[4];
    (void)argv;
    if (argc != 1)
        return 2;
    while (port_read(request, sizeof request)) {
        if (request[2] > BUFFER_BYTES || request[3] > BUFFER_BYTES ||
            !port_read(input, request[2]) || !run(request[0], request[1], request[3]) ||
            !port_write(output, request[3]))
            return 4;
    }
    return 0;
}
