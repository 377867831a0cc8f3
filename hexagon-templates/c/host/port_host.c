/* port.h on a POSIX system. */
#define _GNU_SOURCE
#include "../port.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define PAGE 65536u

int port_read(void *to, uint32_t bytes)
{
    for (uint32_t done = 0; done < bytes;) {
        ssize_t got = read(0, (char *)to + done, bytes - done);
        if (got <= 0)
            return 0;
        done += (uint32_t)got;
    }
    return 1;
}

int port_write(const void *from, uint32_t bytes)
{
    for (uint32_t done = 0; done < bytes;) {
        ssize_t put = write(1, (const char *)from + done, bytes - done);
        if (put <= 0)
            return 0;
        done += (uint32_t)put;
    }
    return 1;
}

/* So many bytes of address space, with a page on either side that nobody may touch. */
static char *reserve(size_t size)
{
    char *base = mmap(0, size + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return base == MAP_FAILED ? 0 : base + PAGE;
}

void *port_map(const char *path, uint32_t *bytes)
{
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return 0;
    struct stat stat;
    void *base = MAP_FAILED;
    if (fstat(fd, &stat) == 0 && stat.st_size > 0 && stat.st_size <= 0x7fff0000 &&
        stat.st_size % PAGE == 0) {
        size_t size = (size_t)stat.st_size;
        char *place = reserve(size);
        if (place)
            base = mmap(place, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
    }
    close(fd);
    if (base == MAP_FAILED)
        return 0;
    *bytes = (uint32_t)stat.st_size;
    return base;
}

void port_unmap(void *base, uint32_t bytes)
{
    munmap((char *)base - PAGE, bytes + 2 * PAGE);
}

void *port_memory(uint32_t bytes)
{
    if (bytes == 0 || bytes > 0x7fff0000u)
        return 0;
    size_t size = ((size_t)bytes + PAGE - 1) / PAGE * PAGE;
    char *place = reserve(size);
    if (!place || mprotect(place, size, PROT_READ | PROT_WRITE) != 0)
        return 0;
    return place;
}

int main(int argc, char **argv)
{
    return port_main(argc, argv);
}
