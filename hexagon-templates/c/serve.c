/* Runs batches until standard input ends: `serve VTCM_BYTES SCRATCH_BYTES`. */
#include "abi.h"
#include "expert.h"
#include "memory.h"
#include "ops.h"
#include "pipe.h"
#include "port.h"

static struct memory_buffer mapped[PIPE_MAX_HANDLES];
static struct memory memory;

/* A message, private: what is checked in it stays as it was. */
static _Alignas(8) uint8_t message[ESTREAM_MAX_BATCH_BYTES];

static struct estream_reply reply_to(uint32_t sequence, enum estream_status status)
{
    struct estream_reply reply = {
        .magic = ESTREAM_MAGIC,
        .version = ESTREAM_VERSION,
        .sequence = sequence,
        .status = status,
        .op = ESTREAM_NONE,
    };
    return reply;
}

/* Operators of a kind have one size. */
#define RUN(KIND, type, run)                                                                       \
    case ESTREAM_KIND_##KIND:                                                                      \
        if (op->bytes == sizeof(struct estream_##type))                                            \
            fault = run((const struct estream_##type *)op, &memory);                               \
        break

/* One operator, of which `bytes` are there and say so. */
static struct route_fault run_op(const struct estream_op *op)
{
    struct route_fault fault = { .status = ESTREAM_BAD_MESSAGE, .detail = 0 };
    switch (op->kind) {
        RUN(EMBED, embed, embed_run);
        RUN(LINEAR, linear, linear_run);
        RUN(RMS_NORM, rms_norm, rms_norm_run);
        RUN(ROPE, rope, rope_run);
        RUN(ATTENTION, attention, attention_run);
        RUN(MLA, mla, mla_run);
        RUN(SHORT_CONV, short_conv, short_conv_run);
        RUN(ROUTER, router, router_run);
        RUN(EXPERTS, experts, expert_run);
        RUN(ADD, add, add_run);
    default:
        fault.status = ESTREAM_BAD_KIND;
    }
    return fault;
}

static enum estream_status name_buffers(const struct estream_buffer *buffers, uint32_t count)
{
    memory.buffer_count = count;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t handle = buffers[i].handle;
        if (handle >= PIPE_MAX_HANDLES || !mapped[handle].base ||
            buffers[i].bytes > mapped[handle].bytes)
            return ESTREAM_BAD_BUFFER;
        memory.buffers[i].base = mapped[handle].base;
        memory.buffers[i].bytes = buffers[i].bytes;
    }
    return ESTREAM_OK;
}

/* A whole batch is in `message`. */
static struct estream_reply run_batch(const struct estream_batch *batch)
{
    struct estream_reply reply = reply_to(batch->sequence, ESTREAM_BAD_MESSAGE);
    if (batch->version != ESTREAM_VERSION || batch->zero[0] != 0 || batch->zero[1] != 0 ||
        batch->buffer_count > ESTREAM_MAX_BUFFERS || batch->op_count > ESTREAM_MAX_OPS)
        return reply;
    uint32_t at = sizeof *batch + batch->buffer_count * (uint32_t)sizeof(struct estream_buffer);
    if (at > batch->bytes)
        return reply;
    reply.status = name_buffers((const struct estream_buffer *)(batch + 1), batch->buffer_count);
    for (uint32_t i = 0; i < batch->op_count && reply.status == ESTREAM_OK; i++) {
        const struct estream_op *op = (const struct estream_op *)(message + at);
        struct route_fault fault = { .status = ESTREAM_BAD_MESSAGE, .detail = 0 };
        if (batch->bytes - at >= sizeof *op && op->bytes >= sizeof *op && op->bytes % 8 == 0 &&
            op->bytes <= batch->bytes - at && op->zero == 0) {
            fault = run_op(op);
            at += op->bytes;
        }
        reply.status = fault.status;
        if (fault.status != ESTREAM_OK) {
            reply.op = i;
            reply.detail = fault.detail;
        }
    }
    return reply;
}

/* The rest of a message of which `head` bytes were read. */
static int read_rest(uint32_t head, uint32_t bytes)
{
    return port_read(message + head, bytes - head);
}

static int serve_batch(void)
{
    const struct estream_batch *batch = (const struct estream_batch *)message;
    if (!read_rest(sizeof(struct pipe_map), sizeof *batch))
        return 0;
    /* Where a message of no known length ends, nobody knows. */
    if (batch->bytes < sizeof *batch || batch->bytes > sizeof message || batch->bytes % 8 != 0)
        return 0;
    if (!read_rest(sizeof *batch, batch->bytes))
        return 0;
    struct estream_reply reply = run_batch(batch);
    return port_write(&reply, sizeof reply);
}

static int serve_map(void)
{
    struct pipe_map map = *(const struct pipe_map *)message;
    static char path[PIPE_MAX_PATH_BYTES + 1];
    struct estream_reply reply = reply_to(map.sequence, ESTREAM_BAD_BUFFER);
    if (map.path_bytes > PIPE_MAX_PATH_BYTES || !port_read(path, map.path_bytes))
        return 0;
    path[map.path_bytes] = 0;
    if (map.handle < PIPE_MAX_HANDLES) {
        struct memory_buffer *buffer = &mapped[map.handle];
        if (map.magic == PIPE_MAP_MAGIC && !buffer->base) {
            buffer->base = port_map(path, &buffer->bytes);
            reply.status = buffer->base ? ESTREAM_OK : ESTREAM_BAD_BUFFER;
        } else if (map.magic == PIPE_UNMAP_MAGIC && buffer->base) {
            port_unmap(buffer->base, buffer->bytes);
            *buffer = (struct memory_buffer){ .base = 0, .bytes = 0 };
            reply.status = ESTREAM_OK;
        }
    }
    return port_write(&reply, sizeof reply);
}

/* Exit codes are those of estream: 2 usage, 4 a message that is none, 5 no memory. */
int port_main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    memory.vtcm_bytes = port_number(argv[1]);
    memory.scratch_bytes = port_number(argv[2]);
    memory.vtcm = port_memory(memory.vtcm_bytes);
    memory.scratch = port_memory(memory.scratch_bytes);
    if (!memory.vtcm || !memory.scratch)
        return 5;
    while (port_read(message, sizeof(struct pipe_map))) {
        uint32_t magic = *(const uint32_t *)message;
        int served = 0;
        if (magic == ESTREAM_MAGIC)
            served = serve_batch();
        else if (magic == PIPE_MAP_MAGIC || magic == PIPE_UNMAP_MAGIC)
            served = serve_map();
        if (!served)
            return 4;
    }
    return 0;
}
