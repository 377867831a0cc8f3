/* What the programs `serve` and `probe` ask of the machine below them. */
#ifndef ESTREAM_PORT_H
#define ESTREAM_PORT_H

#include <stdint.h>

/* Reads exactly so many bytes from standard input: 1, or 0 if it ended first. */
int port_read(void *to, uint32_t bytes);

/* Writes them to standard output: 1, or 0 if nobody reads. */
int port_write(const void *from, uint32_t bytes);

/* A file as shared memory, and its size, a multiple of 64 KiB; or null. */
void *port_map(const char *path, uint32_t *bytes);
void port_unmap(void *base, uint32_t bytes);

/* Memory that nobody else has, all zeros, on a page of its own with nothing before or behind it; or
 * null. */
void *port_memory(uint32_t bytes);

/* The program: returns its exit code. */
int port_main(int argc, char **argv);

/* A decimal number below 2^31, or 0. */
static inline uint32_t port_number(const char *text)
{
    uint32_t value = 0;
    for (; *text >= '0' && *text <= '9' && value < 200000000u; text++)
        value = value * 10 + (uint32_t)(*text - '0');
    return *text == 0 ? value : 0;
}

#endif
