/* port.h on Linux for Hexagon with no C library: the system called by trap. */
#include "../port.h"
#include "../memory.h"

/* What the emulator takes for a page. */
#define PAGE 65536u

enum {
    CALL_OPENAT = 56,
    CALL_CLOSE = 57,
    CALL_SEEK = 62,
    CALL_READ = 63,
    CALL_WRITE = 64,
    CALL_EXIT = 94,
    CALL_UNMAP = 215,
    CALL_MMAP = 222,
    CALL_PROTECT = 226,
};

enum { FROM_HERE = -100, READ_WRITE = 2, CLOSE_ON_EXEC = 02000000, SEEK_END = 2 };
enum { PROTECT_NONE = 0, PROTECT_READ_WRITE = 3, MAP_SHARED = 1, MAP_PRIVATE_ZERO = 0x22 };

static int32_t call(uint32_t number, uint32_t a, uint32_t b, uint32_t c, uint32_t d, uint32_t e,
                    uint32_t f)
{
    register uint32_t r0 __asm__("r0") = a;
    register uint32_t r1 __asm__("r1") = b;
    register uint32_t r2 __asm__("r2") = c;
    register uint32_t r3 __asm__("r3") = d;
    register uint32_t r4 __asm__("r4") = e;
    register uint32_t r5 __asm__("r5") = f;
    register uint32_t r6 __asm__("r6") = number;
    __asm__ volatile("trap0(#1)"
                     : "+r"(r0)
                     : "r"(r1), "r"(r2), "r"(r3), "r"(r4), "r"(r5), "r"(r6)
                     : "memory");
    return (int32_t)r0;
}

static int failed(int32_t result)
{
    return result < 0 && result > -4096;
}

int port_read(void *to, uint32_t bytes)
{
    for (uint32_t done = 0; done < bytes;) {
        int32_t got = call(CALL_READ, 0, (uint32_t)to + done, bytes - done, 0, 0, 0);
        if (got <= 0)
            return 0;
        done += (uint32_t)got;
    }
    return 1;
}

int port_write(const void *from, uint32_t bytes)
{
    for (uint32_t done = 0; done < bytes;) {
        int32_t put = call(CALL_WRITE, 1, (uint32_t)from + done, bytes - done, 0, 0, 0);
        if (put <= 0)
            return 0;
        done += (uint32_t)put;
    }
    return 1;
}

/* Bytes of a file, or 0. Mapping what is behind its end would end the emulator. */
static uint32_t size_of(int32_t file)
{
    uint64_t size = 0;
    int32_t result = call(CALL_SEEK, (uint32_t)file, 0, 0, (uint32_t)&size, SEEK_END, 0);
    if (failed(result) || size > 0x7fff0000u || size % PAGE != 0)
        return 0;
    return (uint32_t)size;
}

void *port_map(const char *path, uint32_t *bytes)
{
    int32_t file = call(CALL_OPENAT, (uint32_t)FROM_HERE, (uint32_t)path,
                        READ_WRITE | CLOSE_ON_EXEC, 0, 0, 0);
    if (failed(file))
        return 0;
    uint32_t size = size_of(file);
    int32_t base = -1;
    if (size > 0)
        base = call(CALL_MMAP, 0, size, PROTECT_READ_WRITE, MAP_SHARED, (uint32_t)file, 0);
    call(CALL_CLOSE, (uint32_t)file, 0, 0, 0, 0, 0);
    if (failed(base))
        return 0;
    *bytes = size;
    return (void *)base;
}

void port_unmap(void *base, uint32_t bytes)
{
    call(CALL_UNMAP, (uint32_t)base, bytes, 0, 0, 0, 0);
}

void *port_memory(uint32_t bytes)
{
    if (bytes == 0 || bytes > 0x7fff0000u)
        return 0;
    uint32_t size = (bytes + PAGE - 1) / PAGE * PAGE;
    int32_t base =
        call(CALL_MMAP, 0, size + 2 * PAGE, PROTECT_NONE, MAP_PRIVATE_ZERO, (uint32_t)-1, 0);
    if (failed(base) ||
        failed(call(CALL_PROTECT, (uint32_t)base + PAGE, size, PROTECT_READ_WRITE, 0, 0, 0)))
        return 0;
    return (uint8_t *)base + PAGE;
}

/* The stack holds argc and then argv when a process begins. */
__attribute__((used, noreturn)) static void begin(uint32_t *stack)
{
    int code = port_main((int)stack[0], (char **)(stack + 1));
    for (;;)
        call(CALL_EXIT, (uint32_t)code, 0, 0, 0, 0, 0);
}

__asm__(".globl _start\n"
        "_start:\n"
        "{ r0 = r29; r29 = and(r29, #-128) }\n"
        "call begin\n");
