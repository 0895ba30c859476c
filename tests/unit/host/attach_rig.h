/* SPDX-License-Identifier: Apache-2.0 */
/* What tests of the attach socket share: a server on a loop of its own, a record of its events, and clients. */
#ifndef GACC_TEST_ATTACH_RIG_H
#define GACC_TEST_ATTACH_RIG_H

#include "host/attach.h"

#include <stdbool.h>
#include <stddef.h>
#include <uv.h>

extern uv_loop_t loop;
extern struct attach *server;
extern char story[4096]; /* what the edge was told, in order: "r1 c1" */
extern uint64_t last_conn;
extern char request[ATTACH_MAX_REQUEST]; /* the last one */
extern size_t n_request;
extern struct listen_peer requester;
extern int answer_with; /* a descriptor that each request gets at once; -1: none */
extern char refusal[256];

/* A checked fixture. */
void attach_setup(void);
void attach_teardown(void);

/* Runs what is ready. */
void spin(void);
/* The same, and 1 ms later: for what no event of the loop tells of. */
void turn(void);
/* Until the story has this. */
void wait_for(const char *what);
/* A connection; one that has sent a request. */
int client(void);
int asking_client(void);
/* Has the server closed it? An answer that nobody has read may come before the end. */
bool is_over(int fd);
int open_fds(void);
/* Receives one answer; returns the number of descriptors in fds. */
size_t receive(int c, char *text, size_t n_text, int *fds, size_t most);

#endif
