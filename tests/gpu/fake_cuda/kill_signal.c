/* SPDX-License-Identifier: Apache-2.0 */
/* A thread waits for the signal's handler. If an operation runs, its thread is the one that dies, in the middle of it:
 * that is where the ghost has to go on. One that does not come to a store or to the next part of a copy within 50 ms is
 * lost. */
#include "kill_signal.h"

#include "driver.h"
#include "ghost.h"
#include "kernels.h"
#include "options.h"
#include "stream.h"

#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

static sem_t came;

static void on_signal(int sig)
{
	sem_post(&came);
}

static void *wait_and_die(void *arg)
{
	bool runs = true;
	while (sem_wait(&came))
		;
	ghost_call();
	kernels_kill_now();
	for (int i = 0; i < 500 && runs; i++) {
		driver_lock();
		runs = stream_any_runs();
		driver_unlock();
		if (runs)
			usleep(100);
	}
	ghost_die();
	stream_finish_all();
}

void kill_signal_install(void)
{
	pthread_t thread;
	sigset_t all, old;
	if (!options()->kill_signal)
		return;
	struct sigaction action = { .sa_handler = on_signal, .sa_flags = SA_RESTART };
	sigemptyset(&action.sa_mask);
	if (sem_init(&came, 0, 0) || sigaction(options()->kill_signal, &action, NULL))
		options_wrong("FAKE_CUDA_KILL_SIGNAL");
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	if (pthread_create(&thread, NULL, wait_and_die, NULL))
		abort();
	pthread_detach(thread);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
}
