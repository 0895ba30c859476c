/* SPDX-License-Identifier: Apache-2.0 */
/* Switches stacks for the simulator. A function that is left by fiber_switch goes on when somebody switches back, as if
 * the call had returned. No signal masks, no exceptions across fibers. */
#include "fiber.h"

#include <cstdlib>
#include <cstring>

#if defined(__SANITIZE_ADDRESS__)
#define WITH_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define WITH_ASAN 1
#endif
#endif

#ifdef WITH_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace
{
thread_local fiber *came_from; /* by the switch that is taking place */
thread_local void (*first_entry)();

void leave(fiber *from, fiber *to, bool last)
{
	came_from = from;
#ifdef WITH_ASAN
	__sanitizer_start_switch_fiber(last ? nullptr : &from->fake_stack, to->stack, to->bytes);
#else
	(void)to;
	(void)last;
#endif
}

/* On the new stack. The fiber that was left learns where its own stack lies: the thread's first one does not know. */
void arrive(fiber *self)
{
#ifdef WITH_ASAN
	fiber *from = came_from;
	__sanitizer_finish_switch_fiber(self ? self->fake_stack : nullptr, &from->stack, &from->bytes);
#else
	(void)self;
#endif
}

/* Those who were here before have not returned: what lay around their variables is still forbidden. */
void clear(void *stack, size_t bytes)
{
#ifdef WITH_ASAN
	__asan_unpoison_memory_region(stack, bytes);
#else
	(void)stack;
	(void)bytes;
#endif
}

void begin()
{
	void (*entry)() = first_entry;
	arrive(nullptr);
	entry();
	abort();
}
} // namespace

#ifdef SIM_UCONTEXT

static void swap(fiber *from, fiber *to)
{
	swapcontext(&from->context, &to->context);
}

void fiber_make(fiber *f, void *stack, size_t bytes, void (*entry)())
{
	clear(stack, bytes);
	getcontext(&f->context);
	f->context.uc_stack.ss_sp = stack;
	f->context.uc_stack.ss_size = bytes;
	f->context.uc_link = nullptr;
	makecontext(&f->context, begin, 0);
	f->stack = stack;
	f->bytes = bytes;
	f->fake_stack = nullptr;
	first_entry = entry;
}

#else

extern "C" void sim_swap_stacks(void **save, void *to);
/* Saves what a called function must keep, and takes it from the other stack. */
asm(".text\n"
    ".globl sim_swap_stacks\n"
    ".hidden sim_swap_stacks\n"
    ".type sim_swap_stacks,@function\n"
    "sim_swap_stacks:\n"
    "	push %rbp\n"
    "	push %rbx\n"
    "	push %r12\n"
    "	push %r13\n"
    "	push %r14\n"
    "	push %r15\n"
    "	mov %rsp,(%rdi)\n"
    "	mov %rsi,%rsp\n"
    "	pop %r15\n"
    "	pop %r14\n"
    "	pop %r13\n"
    "	pop %r12\n"
    "	pop %rbx\n"
    "	pop %rbp\n"
    "	ret\n"
    ".size sim_swap_stacks,.-sim_swap_stacks\n");

static void swap(fiber *from, fiber *to)
{
	sim_swap_stacks(&from->sp, to->sp);
}

void fiber_make(fiber *f, void *stack, size_t bytes, void (*entry)())
{
	clear(stack, bytes);
	void **top = reinterpret_cast<void **>(static_cast<char *>(stack) + bytes);
	*--top = nullptr; /* begin's return address: the stack is aligned as after a call */
	*--top = reinterpret_cast<void *>(begin);
	top -= 6;
	memset(top, 0, 6 * sizeof(*top));
	f->sp = top;
	f->stack = stack;
	f->bytes = bytes;
	f->fake_stack = nullptr;
	first_entry = entry;
}

#endif

void fiber_switch(fiber *from, fiber *to, bool last)
{
	leave(from, to, last);
	swap(from, to);
	arrive(from);
}
