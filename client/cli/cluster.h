/* SPDX-License-Identifier: Apache-2.0 */
/* The throw-away gaccds of `gaccctl cluster`, one or several: a private directory with the sockets, state and log of
 * each, and the file cluster.json that says which processes they are. */
#ifndef GACCCTL_CLUSTER_H
#define GACCCTL_CLUSTER_H

#include "command.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define CLUSTER_NODES 32
#define CLUSTER_PATH 128   /* bytes of a path in the cluster's directory */
#define CLUSTER_NETNS 24   /* bytes of a namespace's name: "gacc-1a2b3c-31" */
#define CLUSTER_ADDRESS 16 /* bytes of a node's address there: "10.71.0.32" */

/* One gaccd. */
struct cluster_node {
	char name[16]; /* "node0"; of one alone "", and then it is called like the machine */
	char dir[80];  /* that of the cluster, or a directory in it: the sockets have room in a sockaddr_un */
	char endpoint[120];
	pid_t pid;	/* of its supervisor; 0: none is known */
	uint64_t start; /* of the process, in clock ticks since boot: tells it from another with the same number */
};

struct cluster {
	char dir[60];
	char net[8];	  /* names the network namespaces of its nodes; "": they share the caller's loopback */
	char address[24]; /* HOST:PORT where node 0, which coordinates, listens for the others; "": it is alone */
	uint32_t n;	  /* how many of node[] there are; 0: not known yet */
	struct cluster_node node[CLUSTER_NODES];
};

/* ---- cluster_dir.c ---- */

/* Where it is, by --dir, XDG_RUNTIME_DIR or TMPDIR. False: fail_with() was called. */
bool cluster_place(struct invocation *inv, struct cluster *c, int *exit_status);
/* That many nodes, 1 to CLUSTER_NODES: their names, directories and endpoints. */
void cluster_count(struct cluster *c, uint32_t n);
/* Reads cluster.json; false: there is none. */
bool cluster_load(struct cluster *c);
/* Writes it. 0 or errno. */
int cluster_save(const struct cluster *c);
/* A pidfd of exactly that process; -1: it is gone. */
int cluster_process(const struct cluster_node *node);
/* When a process started, as in struct cluster_node; 0: there is no such process. */
uint64_t cluster_start_of(pid_t pid);
/* Makes the directories, or checks that old ones are ours alone. 0 or errno. */
int cluster_make_dirs(const struct cluster *c);
/* Deletes it with all that is in it. 0 or errno. */
int cluster_remove(const struct cluster *c);

/* ---- cluster_net.c: nodes in network namespaces ---- */

/* May and can they be made for n nodes? Then c->net is chosen. False: fail_with() was called. */
bool cluster_net_wanted(struct invocation *inv, struct cluster *c, uint32_t n, int *exit_status);
/* Makes them, and fills c->address. 0 or errno; ECHILD: a program has failed, and said why on stderr. What was made
 * before is left, for cluster_net_remove. */
int cluster_net_make(struct cluster *c);
/* Removes all that is there of them; nothing, if the cluster has none. */
void cluster_net_remove(const struct cluster *c);
/* The namespace of node i, and the address that it has there. */
void cluster_net_name(const struct cluster *c, uint32_t i, char out[CLUSTER_NETNS]);
void cluster_net_address(uint32_t i, char out[CLUSTER_ADDRESS]);
/* Makes throw-away certificates for all nodes by make-certs.sh. As cluster_net_make; ENOENT: that is not installed. */
int cluster_net_certify(const struct cluster *c);
/* The file of node i's certificate ("pem") or key ("key"). */
void cluster_net_cert(const struct cluster *c, uint32_t i, const char *end, char out[CLUSTER_PATH]);

/* ---- cluster_spawn.c ---- */

/* For several nodes on loopback: chooses a free port, fills c->address, and writes the file with the token that the
 * nodes show the coordinator. 0 or errno. */
int cluster_connect_nodes(struct cluster *c);
/* Starts node i's `gaccd --supervise`, in a session and, if there are any, in a namespace of its own, and fills its pid
 * and start. 0 or errno. */
int cluster_spawn(struct cluster *c, uint32_t i, const char *gaccd);

#endif
