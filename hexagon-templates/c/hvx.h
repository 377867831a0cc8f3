/* Integer vectors of 128 bytes by the compiler's names, Q6_…: instructions on Hexagon, loops over
 * a union of arrays elsewhere. Only what the kernels use; `probe` compares the two.
 */
#ifndef ESTREAM_HVX_H
#define ESTREAM_HVX_H

#include <stdint.h>

#define HVX_BYTES 128

#ifdef __hexagon__
#include <hexagon_types.h>
#include <hvx_hexagon_protos.h>
#else
#include "host/hvx_loops.h"
#endif

#endif
