/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of coll_gloo: a member, what it tells the others besides data, and how it waits and breaks.
 *
 * Threads of a member: the communication thread, in the calls; the watch (gloo_watch.c), from coll_join to coll_leave,
 * which alone notices that another member has gone, that a wait takes too long, and that somebody has called
 * coll_abort. It wakes the communication thread, tells the others why, and closes the connections. */
#ifndef GACC_COLL_GLOO_IMPL_H
#define GACC_COLL_GLOO_IMPL_H

#include "coll/coll.h"
#include "coll/gloo_blob.h"
#include "coll/gloo_shim.h"

#include <pthread.h>

#define GLOO_DEPTH 3 /* pieces in flight to a part */

/* Slots of Gloo's messages. Those of operation n: GLOO_SLOT_OPERATIONS + n * GLOO_SLOTS; data have a slot made of the
 * operation's shape (see gloo_data_slot). */
enum {
	GLOO_SLOT_HELLO,
	GLOO_SLOT_LAST_WORD,
	GLOO_SLOT_WAITING,
	GLOO_SLOT_SMALL,
	GLOO_SLOT_OPERATIONS = 16,
	GLOO_SLOTS = 2
};

enum gloo_operation { GLOO_EXCHANGE = 1, GLOO_GATHER, GLOO_BROADCAST, GLOO_BARRIER, GLOO_SUM_SMALL };

/* The first message on a connection. */
struct gloo_hello {
	struct coll_id id;
	uint64_t part, life;
	uint64_t proof; /* keyed digest of the above */
};

/* The last one. */
struct gloo_last_word {
	uint64_t kind;	     /* enum gloo_end */
	uint64_t operations; /* that it has completed */
	uint64_t status;     /* enum status of its failure */
	uint64_t suspects;   /* bit s: part s */
};
enum gloo_end { GLOO_DIED, GLOO_LEFT, GLOO_ABORTED, GLOO_FAILED };

/* Why nothing comes from this member. It waits itself: told when half of the time has passed after which it gives up,
 * and then again and again; who waits for it blames the others. Or it is at work (coll_at_work). A member of an older
 * build takes that for a wait for nobody, and gives up as before. */
struct gloo_waiting {
	uint64_t parts; /* bit s: something is to come from, or to be taken by, part s; 0: it is at work */
	uint64_t times; /* that it has told anything; comes last */
};

/* The first message of an operation. What must be equal at all comes first, without padding. */
struct gloo_shape {
	uint64_t operation, piece, element, shares; /* shares: the digest of how they are cut and owned */
};
struct gloo_header {
	struct gloo_shape shape;
	uint64_t whole;
};

/* A coll_sum_small as it is sent: always of the same size, as the receive for the next one is posted before it is known
 * what that one will be. The bytes follow. */
struct gloo_small {
	struct gloo_shape shape; /* piece: their number; shares: that of the operation */
	uint64_t digest;	 /* of the shape and of them */
	uint64_t unused[3];	 /* 64 bytes */
};
#define GLOO_SMALL_TURNS 2

/* What is between this member and another part. */
struct gloo_peer {
	struct gloo_member *member;
	uint32_t part;
	struct sockaddr_storage address; /* where it listens for this member */
	pthread_t connecting;
	int socket; /* a second descriptor of Gloo's connection; -1: none yet */
	struct {    /* what `words` sends from and receives into */
		struct gloo_hello hello_out, hello_in;
		struct gloo_header header_out, header_in;
		uint64_t digest_out, digest_in;
	} memory;
	struct gloo_last_word last_in;
	struct gloo_waiting waiting_in;
	struct shim_buffer *words, *last, *waiting;
	struct shim_buffer *small[GLOO_SMALL_TURNS]; /* by turns: what is received into one cannot spoil the other */
	uint64_t life;				     /* as the board has it */
	/* the member's mutex */
	bool joined;
	bool gone;		/* the connection has ended */
	bool told;		/* if gone: last_in tells why */
	int64_t waits_since_ns; /* when it told that it waits; 0: never */
	int64_t worked_ns;	/* when it told that it is at work; 0: never */
	uint64_t waits_for;
	/* the watch */
	uint64_t heard; /* times that it has told */
	/* the communication thread, of one operation */
	struct shim_buffer *out, *in;
	uint64_t sent, received; /* digests */
	uint64_t n_out;		 /* sends to wait for */
};

struct gloo_opened;

struct gloo_net {
	struct coll_net base;
	struct shim_device *device;
	char congestion[16]; /* "": the machine's */
	pthread_mutex_t mutex;
	struct gloo_opened *opened; /* the mutex */
};

struct gloo_member {
	struct coll base;
	struct gloo_net *net;
	struct coll_id id;
	uint64_t life;
	int64_t stall_ns, join_ns;
	struct shim_context *context;
	struct gloo_blob blob;
	uint64_t secret[24]; /* of the digests; the same for all members */
	pthread_mutex_t mutex;
	pthread_cond_t changed; /* for coll_join */
	/* the mutex */
	enum coll_phase phase;
	uint64_t pieces;
	struct coll_failure failure;
	struct gloo_last_word last_out; /* not written any more once the watch sends it */
	struct shim_buffer *waits_for;	/* of the communication thread; NULL: it does not wait */
	uint64_t waits_for_parts;
	int64_t wait_since_ns, wait_until_ns;
	uint64_t stalled_by; /* the wait is too long: parts; 0: it is not */
	bool stopping;
	uint64_t worked;	   /* calls of coll_at_work */
	uint64_t begun, completed; /* operations */
	/* the watch */
	pthread_t watch;
	bool watched;
	int wakes_watch; /* eventfd */
	struct shim_buffer *last_words, *waiting_words, *working_words;
	struct gloo_waiting waiting_out, working_out;
	uint64_t n_told, worked_told;		  /* of both together; what `worked` was then */
	int64_t waiting_told_ns, working_told_ns; /* 0: never */
	/* the communication thread */
	unsigned char *scratch;
	size_t n_scratch;
	uint64_t n_small;		     /* operations begun */
	unsigned char *small_in, *small_out; /* messages: a turn of all parts, then the other; one */
	struct shim_buffer *small_words;     /* of small_out */
	struct gloo_peer peer[COLL_MAX_PARTS];
};

/* The other parts one after the other, from the next one on: not all begin with the same. */
static inline uint32_t gloo_other(const struct gloo_member *m, uint32_t i)
{
	return (m->base.part + 1 + i) % m->base.n_parts;
}

static inline uint64_t gloo_bit(uint32_t part)
{
	return UINT64_C(1) << part;
}

/* ---- digests (gloo_digest.c) ---- */

void gloo_make_secret(struct gloo_member *, const uint64_t (*key)[2]); /* of all parts */
uint64_t gloo_proof(const struct gloo_member *, const struct gloo_hello *);
/* Of n bytes, the same whoever sends them. */
uint64_t gloo_digest(const struct gloo_member *, const void *, size_t n);
/* What makes a piece's digest that of piece i from one part to another in this operation; sums of these are compared.
 */
uint64_t gloo_digest_of(const struct gloo_member *, uint64_t digest, uint32_t from, uint32_t to, uint64_t i);
uint64_t gloo_digest_shares(const struct gloo_member *, const uint64_t *bounds, const struct coll_division *);
uint64_t gloo_data_slot(const struct gloo_member *, const struct gloo_shape *);

/* ---- joining (gloo_join.c) ---- */

enum status gloo_join(struct coll *, const struct coll_address *all);
/* Connects to the own ports where nobody has come (all: nobody has been looked for yet), before they are closed: a port
 * that is closed while a member knocks resets its connection, which may end its process (gloo_shim.h). */
void gloo_stop_listening(struct gloo_member *, bool all);

/* ---- breaking and waiting (gloo_watch.c) ---- */

/* A thread that no signal of the process reaches. */
bool gloo_thread(pthread_t *, void *(*main)(void *), void *arg);

/* Sets the member's failure if it has none yet, ends its waits, and has the others told. The status of the first one.
 */
enum status gloo_break(struct gloo_member *, enum gloo_end, enum status, uint64_t suspects, const char *text);
/* The connection to part s has ended; `told`: last_in says why. Breaks the member, unless the part has completed the
 * operation that runs here. */
void gloo_lost(struct gloo_member *, uint32_t s, bool told);
/* Breaks the member because of a part that has gone. */
enum status gloo_blame(struct gloo_member *, uint32_t s);
/* The first failure's, or ST_OK. */
enum status gloo_status(struct gloo_member *);
/* Waits of the communication thread, for part s. */
typedef enum shim_result gloo_wait_fn(struct shim_buffer *);
enum status gloo_wait(struct gloo_member *, uint32_t s, struct shim_buffer *, gloo_wait_fn *);
/* The communication thread has found the connection to part s broken: waits until the watch knows why. */
enum status gloo_cut(struct gloo_member *, uint32_t s);
/* Tells those that have joined how this member ends. */
void gloo_tell(struct gloo_member *);
bool gloo_watch_start(struct gloo_member *);
void gloo_watch_stop(struct gloo_member *);

/* ---- operations (gloo_ops.c) ---- */

/* At the beginning of each; else than ST_OK: it is over. */
enum status gloo_count_begin(struct gloo_member *);
void gloo_count_piece(struct gloo_member *);
/* Breaks the member: a callback has returned this. */
enum status gloo_callback_failed(struct gloo_member *, enum status);
/* At the end of each, also when broken: after it nobody touches the operation's memory. Returns st. */
enum status gloo_finish(struct gloo_member *, enum status);

enum status gloo_exchange(struct coll *, const struct coll_exchange *);
enum status gloo_gather(struct coll *, const struct coll_gather *);
enum status gloo_broadcast(struct coll *, void *buffer, size_t n, uint32_t root);
enum status gloo_barrier(struct coll *);

/* ---- small sums (gloo_small.c) ---- */

/* Of a member with `small`; false: no memory. */
bool gloo_small_make(struct gloo_member *);
void gloo_small_free(struct gloo_member *);
/* Posts the receive of the part's message of this turn. */
enum shim_result gloo_small_expect(struct gloo_member *, uint32_t s, uint64_t turn);
enum status gloo_sum_small(struct coll *, const struct coll_sum_small *);

#endif
