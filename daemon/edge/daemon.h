/* SPDX-License-Identifier: Apache-2.0 */
/* gaccd: the loop, and everything that lives on it. Private to the edge: main.c uses daemon_run alone.
 *
 * One thread owns all of this. Blocking work (journal, memory) goes to libuv's pool and comes back as callbacks.
 */
#ifndef GACC_EDGE_DAEMON_H
#define GACC_EDGE_DAEMON_H

#include "base/awake.h"
#include "edge/turns.h"
#include "host/token_file.h"
#include "rpc/certificate.h"
#include "rpc/rpc.h"
#include "runtime/node.h"
#include "runtime/persist.h"
#include "runtime/recorder.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

struct attach;
struct listener;
struct link;
struct link_message;
struct members;
struct served;
struct node_dial;
struct peer_link;
struct hosted;
struct part_ports;
struct exchanges;
struct arriving;
struct part_launch;
struct part_record;
struct rank_log_call;
struct starter;

/* A message to be delivered when the handler that caused it has returned. */
struct posted {
	struct posted *next;
	void (*run)(struct posted *);
};

struct late_reply;

/* Answers of control that are put off to a later turn, because many have been given in this one (reply.c). */
struct late_replies {
	uint64_t turn_ms; /* the turn that `n` is of */
	uint32_t n;
	struct late_reply *first, *last;
	bool posted;
};

struct daemon {
	struct node node;
	uv_timer_t tick;
	struct turns turns;
	uv_idle_t idle; /* runs while something is posted */
	uv_signal_t on_term, on_int, on_hup;
	struct posted *posted, **posted_tail;
	struct link *link; /* to the parts and coordinators of this gaccd itself (links.h) */
	struct posted link_post;
	bool link_posted;
	bool away;		      /* another gaccd coordinates (cluster.coordinator) */
	struct node_dial *dial;	      /* to it; NULL: not yet, or this one coordinates (node_dial.h) */
	struct served *served;	      /* calls of other nodes, whether they have said Hello or not (node_serve.c) */
	struct members *members;      /* the other nodes of the cluster, as far as this one coordinates it */
	struct peer_link **node_link; /* to the nodes, by number (link_message.node); NULL: there is none now */
	uint32_t n_node_links, node_links_capacity;
	/* who takes what has arrived, by enum link_kind */
	void (*const *link_takes)(struct daemon *, const struct link_message *);
	struct exchanges *exchanges; /* of the jobs that this gaccd coordinates (exchanging.h) */
	struct posted exchange_post; /* some have their turn */
	bool exchange_posted;
	const struct part_ports *ports; /* of all parts here */
	struct arriving *arriving;	/* placements that are being read (parts.h) */
	struct part_record *record;	/* of parts that are not here, or not yet (part_record.h) */
	struct journal *journal;
	struct persist *persist;
	struct disk_watch *disk;
	struct state_share *share;
	struct starter *starter;	/* of all ranks that this gaccd launches (starter.h) */
	struct rank_log_call *log_call; /* who waits for logs on other nodes (rank_logs.h) */
	uint64_t log_number;
	uint32_t n_log_calls, n_log_reads; /* reads: that another gaccd has asked for */
	struct part_launch *part_launch;   /* of jobs that another one coordinates (part_launch.h) */
	struct history *history;
	struct recorder *recorder;
	uint32_t n_events; /* of this life */
	struct rpc_server *rpc;
	struct rpc_health *health;
	struct late_replies late;
	struct listener *listener;
	struct attach *attach;
	struct failpoint_socket *failpoints; /* NULL in builds without */
	uint64_t term;
	uint64_t last_job;
	struct hosted **job; /* ascending ids; ended ones too, until they are forgotten (hosted_retire.c) */
	uint32_t n_jobs, jobs_capacity;
	struct pending_submit *submitting; /* jobs whose submitters wait: not durable, or without memory yet */
	uint32_t n_queued;		   /* jobs that wait for their turn */
	int64_t queue_told_ns;		   /* when they heard why, last */
	int64_t started_unix_ns;
	char token[TOKEN_MAX]; /* of TCP callers; "" without */
	size_t n_token;
	struct awake awake; /* for the silence of other gaccds; ticked by whoever asks for it at a tick */
	uint64_t watchdog_us;
	int64_t watchdog_ns; /* when it was fed last */
	/* the service manager is getting the memory that tells where the journal stands */
	struct fdstore_request *journal_keeping;
	struct rpc_own_certificate certificate; /* at the last look (own_certificate.h) */
	int64_t certificate_due_ns;
	bool journal_lost; /* it has lost or altered records: no start with it */
};

/* The daemon of a node, which is its beginning. */
static inline struct daemon *daemon_of_node(struct node *n)
{
	_Static_assert(offsetof(struct daemon, node) == 0, "a node is the beginning of its daemon");
	return (struct daemon *)n;
}

struct now daemon_now(const struct daemon *);
/* p is freed by run(). */
void daemon_post(struct daemon *, struct posted *p, void (*run)(struct posted *));
/* What is posted is freed and not run: gaccd ends. */
void daemon_drop_posted(struct daemon *);
#define DAEMON_EXIT_JOURNAL 74 /* EX_IOERR of sysexits.h */
/* wrong arguments or configuration: no manager starts it again */
#define DAEMON_EXIT_CONFIG 2
/* the same (EX_CONFIG), and the manager keeps memory of jobs, which it would drop if it gave up */
#define DAEMON_EXIT_CONFIG_KEPT 78
/* The journal cannot be written, or is another gaccd's: ends the process at once with DAEMON_EXIT_JOURNAL. Nothing that
 * would be said from here on could be relied on; what is on the disk is read at the next start. */
_Noreturn void daemon_fail(void);
/* The same if this outcome of a write means that the journal is broken, or another gaccd's. */
void daemon_check_store(enum status);

/* The next event's number: it grows over restarts. */
uint64_t daemon_event_id(struct daemon *);
/* Something of the node that an operator wants to read, in the log and in the history. */
void daemon_event(struct daemon *, bool warning, const char *reason, const char *text);

/* Runs until SIGTERM or a failure; the process's exit code. */
int daemon_run(const struct conf *);
/* The exit code of a start that has failed with `code`, when a service manager keeps so many descriptors: it goes on
 * starting gaccd, which rests here for some seconds first when only an operator can help. */
int daemon_give_up(int code, size_t stored);
/* gaccd --accept-journal-loss: prints what is lost; the process's exit code. */
int daemon_accept_journal_loss(const struct conf *);

/* methods.c: the rows of all services. */
enum status methods_add(struct daemon *);
/* session_map.c: the attach socket's side. */
enum status session_map_open(struct daemon *);

#endif
