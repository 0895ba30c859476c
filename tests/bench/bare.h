/* gRPC core with nothing around it: the limit that calls and streams are compared with.
 *
 * The server is a process of its own with one thread, which waits on the completion queue and answers right there; the
 * client's thread waits on its own queue. Both use the arguments that are best for them: flow-control windows that grow
 * (gRPC's default), no retries, no channelz, the heap never trimmed.
 */
#ifndef GACC_TESTS_BARE_H
#define GACC_TESTS_BARE_H

#include <stddef.h>
#include <sys/types.h>

/* Starts a server on a socket in /tmp. Before gRPC is initialised in this process. */
struct bare_server {
	pid_t pid;
	char path[64];
};
void bare_server_start(struct bare_server *server);
void bare_server_stop(struct bare_server *server);

struct bare_client;
struct bare_client *bare_client_open(const struct bare_server *server);
void bare_client_close(struct bare_client *client);

/* A unary call with n bytes; the answer has as many. */
void bare_unary(struct bare_client *client, const void *request, size_t n);
/* A client stream of `total` bytes in messages of `chunk`, by reference; the server discards them and answers at the end. */
void bare_stream(struct bare_client *client, const unsigned char *data, size_t total, size_t chunk);

#endif
