/* SPDX-License-Identifier: Apache-2.0 */
/* The handler jumps out of the operation, from whatever stack it ran on; no kernel runs in this process afterwards,
 * since the error is a sticky one. */
#include "trap.h"

#include <setjmp.h>
#include <signal.h>
#include <stddef.h>

static struct sigaction before[2]; /* SIGSEGV, SIGBUS */
static __thread sigjmp_buf out;
static __thread volatile bool running;

static void on_fault(int sig, siginfo_t *info, void *context)
{
	const struct sigaction *other = &before[sig == SIGBUS];
	if (running) {
		running = false;
		siglongjmp(out, 1);
	}
	if (other->sa_flags & SA_SIGINFO) {
		other->sa_sigaction(sig, info, context);
	} else if (other->sa_handler != SIG_DFL && other->sa_handler != SIG_IGN) {
		other->sa_handler(sig);
	} else {
		signal(sig, SIG_DFL); /* it happens again, and ends the process */
	}
}

void trap_install(void)
{
	static const int signals[] = { SIGSEGV, SIGBUS };
	struct sigaction action = { .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK };
	sigemptyset(&action.sa_mask);
	for (size_t i = 0; i < 2; i++)
		sigaction(signals[i], &action, &before[i]);
}

bool trap_run(void (*call)(void *), void *arg)
{
	if (sigsetjmp(out, 1))
		return false;
	running = true;
	call(arg);
	running = false;
	return true;
}
