/* QEMU plugin: counts executed AArch64 instructions by class between two marks of the emulated program.

A mark is the system call of a number that Linux does not have: START sets the counters to zero, STOP prints them as a
line of JSON to the file descriptor of its first argument. One emulated thread. Debian has no package with the header,
so the few declarations are here (source: QEMU's documentation of TCG plugins). */

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
enum { START = 100001, STOP = 100002 };

typedef uint64_t plugin_id;
typedef struct {
    const char *target;
    struct { int min, current; } version;
} plugin_info; /* the first members */
struct qemu_plugin_tb;
struct qemu_plugin_insn;

void qemu_plugin_register_vcpu_tb_trans_cb(plugin_id, void (*)(plugin_id, struct qemu_plugin_tb *));
void qemu_plugin_register_vcpu_syscall_cb(plugin_id, void (*)(plugin_id, unsigned, int64_t, uint64_t, uint64_t,
    uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t));
void qemu_plugin_register_vcpu_tb_exec_cb(struct qemu_plugin_tb *, void (*)(unsigned, void *), int, void *);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *, size_t);
extern const char data_function[] __asm__("qemu_plugin_insn_data"); /* its parameters depend on the version */

EXPORT int qemu_plugin_version = VERSION;

enum { ALL, MULTIPLY_ADDS, VECTOR_LOADS, VECTOR_STORES, CLASSES };
static const char *const names[CLASSES] = {"instructions", "multiply_adds", "vector_loads", "vector_stores"};
static uint64_t counts[CLASSES];
static int copies_data; /* whether qemu_plugin_insn_data copies to its second argument */

typedef struct { uint32_t mask, value; } pattern;
static const pattern multiply_adds[] = {
    {0xbf20fc00, 0x0e20cc00}, /* fmla, fmls: vectors of float32, float64 */
    {0xbf60fc00, 0x0e400c00}, /* of float16 */
    {0xbf00b400, 0x0f001000}, /* by element */
    {0x9fe0fc00, 0x0e809400}, /* sdot, udot */
    {0x9fc0f400, 0x0f80e000}, /* by element */
    {0xdfe0fc00, 0x4e80a400}, /* smmla, ummla */
};

static uint32_t word(struct qemu_plugin_insn *instruction)
{
    uint32_t found = 0;
    if (copies_data)
        ((size_t (*)(struct qemu_plugin_insn *, void *, size_t))(uintptr_t)data_function)(instruction, &found, 4);
    else
        memcpy(&found, ((const void *(*)(struct qemu_plugin_insn *))(uintptr_t)data_function)(instruction), 4);
    return found;
}

/* Vector registers that an instruction of the group of loads and stores moves: pairs two, structures one to four. */
static unsigned moved(uint32_t code)
{
    if ((code & 0x3a000000) == 0x28000000)
        return 2;
    if ((code & 0xbe000000) != 0x0c000000 || code & 0x01000000)
        return 1;
    switch (code >> 12 & 15) {
    case 0: case 2: return 4;
    case 4: case 6: return 3;
    case 8: case 10: return 2;
    default: return 1;
    }
}

static void classify(uint32_t code, uint64_t *found)
{
    found[ALL]++;
    for (size_t i = 0; i < sizeof multiply_adds / sizeof *multiply_adds; i++)
        if ((code & multiply_adds[i].mask) == multiply_adds[i].value) {
            found[MULTIPLY_ADDS]++;
            return;
        }
    if ((code & 0x0e000000) == 0x0c000000) /* loads and stores of vector registers */
        found[(code & 0x3b000000) == 0x18000000 || code & 0x00400000 ? VECTOR_LOADS : VECTOR_STORES] += moved(code);
}

static void on_block(unsigned cpu, void *data)
{
    (void)cpu;
    for (int i = 0; i < CLASSES; i++)
        counts[i] += ((const uint64_t *)data)[i];
}

static void on_translation(plugin_id id, struct qemu_plugin_tb *block)
{
    (void)id;
    uint64_t *found = calloc(CLASSES, sizeof *found);
    for (size_t i = 0; i < qemu_plugin_tb_n_insns(block); i++)
        classify(word(qemu_plugin_tb_get_insn(block, i)), found);
    qemu_plugin_register_vcpu_tb_exec_cb(block, on_block, 0, found);
}

static void on_syscall(plugin_id id, unsigned cpu, int64_t number, uint64_t file, uint64_t b, uint64_t c, uint64_t d,
    uint64_t e, uint64_t f, uint64_t g, uint64_t h)
{
    (void)id, (void)cpu, (void)b, (void)c, (void)d, (void)e, (void)f, (void)g, (void)h;
    if (number == START)
        memset(counts, 0, sizeof counts);
    if (number == STOP) {
        for (int i = 0; i < CLASSES; i++)
            dprintf((int)file, "%s\"%s\": %llu", i ? ", " : "{", names[i], (unsigned long long)counts[i]);
        dprintf((int)file, "}\n");
    }
}

EXPORT int qemu_plugin_install(plugin_id id, const plugin_info *info, int count, char **arguments)
{
    (void)count, (void)arguments;
    copies_data = info->version.current >= 3;
    qemu_plugin_register_vcpu_tb_trans_cb(id, on_translation);
    qemu_plugin_register_vcpu_syscall_cb(id, on_syscall);
    return 0;
}
