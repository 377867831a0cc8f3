/* The fused expert operator: Algorithm 1. */
#ifndef ESTREAM_EXPERT_H
#define ESTREAM_EXPERT_H

#include "abi.h"
#include "memory.h"
#include "route.h"

/* Checks an operator, then runs it: y is as it was if anything is wrong. */
struct route_fault expert_run(const struct estream_experts *op, const struct memory *memory);

#endif
