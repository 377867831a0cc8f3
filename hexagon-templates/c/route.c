#include "route.h"

#define NOWHERE 0xffffffffu

/* The next `count` items of `bytes` each of the private memory. */
static void *take(const struct memory *memory, uint64_t *used, uint64_t count, uint32_t bytes)
{
    void *place = memory->scratch + *used;
    *used += (count * bytes + 7u) & ~(uint64_t)7u;
    return *used <= memory->scratch_bytes ? place : 0;
}

static struct route_fault fault(enum estream_status status, uint32_t detail)
{
    return (struct route_fault){ .status = status, .detail = detail };
}

/* Entries to segments: neighbours of one expert share one. Fills in where each expert's routes
 * go. */
static struct route_fault place(const struct estream_experts *op,
                                const struct estream_entry *entries, uint32_t *segment_of,
                                uint32_t *segment, uint32_t *segments)
{
    uint32_t slots = op->bank_count * op->bank_slots;
    for (uint32_t e = 0; e < op->experts; e++)
        segment_of[e] = NOWHERE;
    *segments = 0;
    for (uint32_t p = 0; p < op->entry_count; p++) {
        uint32_t expert = entries[p].expert;
        if (expert >= op->experts || entries[p].slot >= slots)
            return fault(ESTREAM_BAD_ROUTE, p);
        if (p == 0 || entries[p - 1].expert != expert) {
            if (segment_of[expert] != NOWHERE)
                return fault(ESTREAM_BAD_ROUTE, p);
            segment_of[expert] = (*segments)++;
        }
        segment[p] = segment_of[expert];
    }
    return fault(ESTREAM_OK, 0);
}

struct route_fault route_build(const struct estream_experts *op,
                               const struct estream_route *routes,
                               const struct estream_entry *entries, const struct memory *memory,
                               struct route_map *map)
{
    uint64_t used = 0;
    uint32_t entry_count = op->entry_count, route_count = op->route_count;
    struct estream_entry *own_entries = take(memory, &used, entry_count, sizeof *own_entries);
    uint32_t *segment = take(memory, &used, entry_count, sizeof *segment);
    uint32_t *segment_of = take(memory, &used, op->experts, sizeof *segment_of);
    uint32_t *offset = take(memory, &used, (uint64_t)entry_count + 1, sizeof *offset);
    uint32_t *cursor = take(memory, &used, entry_count, sizeof *cursor);
    struct estream_route *own_routes = take(memory, &used, route_count, sizeof *own_routes);
    struct route_record *records = take(memory, &used, route_count, sizeof *records);
    if (used > memory->scratch_bytes)
        return fault(ESTREAM_NO_MEMORY, route_count);

    memory_copy(own_entries, entries, entry_count * (uint32_t)sizeof *entries);
    memory_copy(own_routes, routes, route_count * (uint32_t)sizeof *routes);
    uint32_t segments;
    struct route_fault placed = place(op, own_entries, segment_of, segment, &segments);
    if (placed.status != ESTREAM_OK)
        return placed;

    for (uint32_t s = 0; s <= segments; s++)
        offset[s] = 0;
    for (uint32_t i = 0; i < route_count; i++) {
        const struct estream_route *route = &own_routes[i];
        if (route->expert >= op->experts || route->token >= op->tokens)
            return fault(ESTREAM_BAD_ROUTE, i);
        uint32_t s = segment_of[route->expert];
        if (s != NOWHERE)
            offset[s + 1]++;
    }
    for (uint32_t s = 0; s < segments; s++) {
        offset[s + 1] += offset[s];
        cursor[s] = offset[s];
    }
    /* In the order of the list, so that the order of a token's sums is that too. */
    for (uint32_t i = 0; i < route_count; i++) {
        uint32_t s = segment_of[own_routes[i].expert];
        if (s != NOWHERE)
            records[cursor[s]++] = (struct route_record){ .token = own_routes[i].token, .route = i };
    }
    *map = (struct route_map){
        .entries = own_entries,
        .segment = segment,
        .offset = offset,
        .records = records,
        .routes = own_routes,
    };
    return fault(ESTREAM_OK, 0);
}
