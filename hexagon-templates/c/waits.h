/* Waits of the operators, by number: a test build leaves one out, and must then fail. */
#ifndef ESTREAM_WAITS_H
#define ESTREAM_WAITS_H

#ifndef ESTREAM_SKIP_WAIT
#define ESTREAM_SKIP_WAIT 0
#endif

/* 1 to 4 are those of expert.c. */
enum {
    WAIT_PRODUCT_DMA = 5,
    WAIT_PRODUCT_MATRIX = 6,
    WAIT_SCORES = 7,
    WAIT_VALUES = 8,
};

#endif
