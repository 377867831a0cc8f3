/* The route map of one experts operator: lines 1 to 7 of Algorithm 1. */
#ifndef ESTREAM_ROUTE_H
#define ESTREAM_ROUTE_H

#include "abi.h"
#include "memory.h"

/* A route of one expert: the token's row, and which of all routes it is. */
struct route_record {
    uint32_t token;
    uint32_t route;
};

/* Routes by expert. Those of the expert of entry p are records[offset[segment[p]]] up to
 * records[offset[segment[p] + 1]]; the shards of an expert share a segment. All of it is private
 * memory. */
struct route_map {
    const struct estream_entry *entries;
    const uint32_t *segment;
    const uint32_t *offset;
    const struct route_record *records;
    const struct estream_route *routes;
};

/* What is wrong, and with which route or entry. */
struct route_fault {
    enum estream_status status;
    uint32_t detail;
};

/* Makes the map of `op` from `routes` and `entries`, which others may write to at any time: each is
 * read once, and checked after that. */
struct route_fault route_build(const struct estream_experts *op,
                               const struct estream_route *routes,
                               const struct estream_entry *entries, const struct memory *memory,
                               struct route_map *map);

#endif
