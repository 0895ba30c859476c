/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints: what a real engine writes while it goes on, and what another makes of it. */
#include "rig.h"

#include "base/log.h"
#include "engine/segment.h"
#include "engine/arith_host.h"
#include "engine/snapshot.h"
#include "engine/snapshot_files.h"
#include "store/checkpoint.h"
#include "support/scratch.h"
#include "support/suite.h"

#include <check.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char dir[SCRATCH_PATH], path[96], why[256];
static struct rig rig, other; /* the second one ends first: its engine, a child, has the first one's socket */

static void setup(void)
{
	ck_assert(scratch_make(dir));
	snprintf(path, sizeof(path), "%s/saved", dir);
}

static void teardown(void)
{
	char command[96];
	snprintf(command, sizeof(command), "rm -rf %s", dir);
	ck_assert_int_eq(system(command), 0);
}

static uint64_t send_tail(struct rig *r, struct engine_command c, const void *tail, size_t n)
{
	c.id = ++r->next_id;
	c.n_present = (uint32_t)n;
	ck_assert_int_eq(packet_send(r->fd, &c, sizeof(c), tail, (uint32_t)n, NULL, 0), 0);
	return c.id;
}

static struct engine_answer answer_to(struct rig *r, uint64_t id)
{
	struct engine_answer a;
	do
		ck_assert(rig_receive(r, &a));
	while (a.id != id);
	return a;
}

static uint64_t send_save(struct rig *r, bool inside)
{
	return send_tail(r, (struct engine_command){ .op = ENGINE_CHECKPOINT, .inside_window = inside }, path,
			 strlen(path));
}

static struct engine_restore restore_of(const struct engine_answer *a)
{
	struct engine_restore r = { .window = a->window,
				    .applied_step = a->applied_step,
				    .count = a->count,
				    .params_digest = a->digest,
				    .loss_scale = a->loss_scale,
				    .sum_weight = a->sum_weight,
				    .sum_loss = a->sum_loss,
				    .micro_size = a->micro_size,
				    .last_rank = a->last_rank,
				    .carry = a->file[CHECKPOINT_CARRY].bytes != 0,
				    .owner = geteuid(),
				    .same_ranges = 1 };
	memcpy(r.file, a->file, sizeof(r.file));
	return r;
}

static struct engine_answer restore(struct rig *r, const struct engine_restore *from)
{
	char tail[sizeof(*from) + sizeof(path)];
	memcpy(tail, from, sizeof(*from));
	memcpy(tail + sizeof(*from), path, strlen(path));
	return answer_to(
		r, send_tail(r, (struct engine_command){ .op = ENGINE_RESTORE }, tail, sizeof(*from) + strlen(path)));
}

static const struct optim_config adamw = {
	.type = OPTIM_ADAMW, .lr = 0.01, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .weight_decay = 0.1
};
static const struct optim_config momentum = { .type = OPTIM_SGD, .lr = 0.1, .momentum = 0.9 };

static struct rig_config config(int i)
{
	struct rig_config c = i == 2 ? rig_large() : rig_small();
	c.optim = i == 1 ? momentum : adamw;
	c.acc_dtype = i == 1 ? DTYPE_F64 : DTYPE_F32;
	c.no_master = i == 3;
	return c;
}

static void open_trained(struct rig *r, const struct rig_config *c)
{
	rig_begin(r, *c);
	rig_zero_params(r);
	for (uint64_t i = 0; i < 2; i++) {
		rig_fill_all(r, i, false);
		rig_add_all(r, NULL);
		rig_step(r, APPLIED, 0.25, 0.01);
	}
}

static void assert_equal_memory(const struct rig *a, const struct rig *b, bool carry)
{
	for (int i = 0; i < a->n_segments; i++) {
		uint32_t role = a->segment[i].header->role;
		if (role >= SEG_PARAMS && role <= SEG_STATE1)
			ck_assert_mem_eq(rig_data(a, role, 0), rig_data(b, role, 0), rig_bytes(a, role, 0));
	}
	if (carry)
		ck_assert_mem_eq(rig_data(a, SEG_ACCUM0 + a->state.r.x, 0), rig_data(b, SEG_ACCUM0 + b->state.r.x, 0),
				 rig_bytes(a, SEG_ACCUM0, 0));
}

/* The rest of the window, and one more: the same bits in both. */
static void go_on_equally(void)
{
	for (uint32_t rank = 0; rank < 2; rank++)
		for (struct rig *r = &rig;; r = &other) {
			rig_fill_slot(r, rank * 2 + 1, 77 + rank);
			ck_assert_uint_eq(rig_add(r, rank, 1, 3).result, COUNTED);
			if (r == &other)
				break;
		}
	struct engine_answer a = rig_step(&rig, APPLIED, 0.125, 0.02), b = rig_step(&other, APPLIED, 0.125, 0.02);
	ck_assert_uint_eq(a.digest, b.digest);
	ck_assert(a.sum_weight == b.sum_weight && a.sum_loss == b.sum_loss);
	assert_equal_memory(&rig, &other, false);
}

START_TEST(training_goes_on_from_a_checkpoint_as_it_did)
{
	struct rig_config c = config(_i);
	open_trained(&rig, &c);
	for (uint32_t rank = 0; rank < 2; rank++) {
		rig_fill_slot(&rig, rank * 2, 50 + rank);
		ck_assert_uint_eq(rig_add(&rig, rank, 0, 1.5).result, COUNTED);
	}
	struct engine_answer a = answer_to(&rig, send_save(&rig, true));
	ck_assert_msg(!a.status, "%s", a.text);
	ck_assert(a.window == 2 && a.applied_step == 2 && a.count == 2 && a.file[CHECKPOINT_CARRY].bytes);
	struct stat st;
	ck_assert(stat(path, &st) == 0 && a.dir.dev == st.st_dev && a.dir.ino == st.st_ino);
	/* a directory that is there: not ours, left alone */
	struct engine_answer again = answer_to(&rig, send_save(&rig, true));
	ck_assert_uint_eq(again.status, ST_IO_ERROR);
	ck_assert_msg(strstr(again.text, "File exists"), "%s", again.text);
	rig_open(&other, &c);
	rig_start(&other);
	struct engine_restore from = restore_of(&a);
	struct engine_answer b = restore(&other, &from);
	ck_assert_msg(!b.status, "%s", b.text);
	rig_read(&rig);
	rig_read(&other);
	other.window = other.state.r.window;
	other.applied_step = other.state.r.applied_step;
	assert_equal_memory(&rig, &other, true);
	ck_assert(other.state.r.window == 2 && other.state.r.params_ready && other.state.r.count == 2 &&
		  other.state.r.filled);
	ck_assert(other.state.rank[0].counted == 1 && other.state.rank[1].counted == 1);
	ck_assert(other.state.r.sum_weight == 3 && other.state.r.params_digest == rig.state.r.params_digest);
	ck_assert_mem_eq(rig.state.counted, other.state.counted, 8 * rig.state.n_words);
	ck_assert_mem_eq(control_page_ledger(&rig.page, 1, 0), control_page_ledger(&other.page, 1, 0),
			 sizeof(struct ledger_cell));
	ck_assert_uint_eq(restore(&other, &from).status, ST_OK); /* again changes nothing */
	rig_attach_all(&other);
	ck_assert_uint_eq(rig_add(&other, 0, 0, 1.5).result, DUPLICATE);
	go_on_equally();
	rig_close(&other);
	rig_close(&rig);
}
END_TEST

/* As a part of a job does whose first part saves the rest: the same two files, and no others. */
START_TEST(a_window_is_saved_alone)
{
	const struct engine_command c = { .op = ENGINE_CHECKPOINT, .inside_window = 1, .own_only = 1 };
	struct rig_config small = config(0);
	open_trained(&rig, &small);
	rig_fill_slot(&rig, 0, 50);
	ck_assert_uint_eq(rig_add(&rig, 0, 0, 1.5).result, COUNTED);
	struct engine_answer all = answer_to(&rig, send_save(&rig, true));
	ck_assert_int_eq(checkpoint_remove(path, why, sizeof(why)), ST_OK);
	struct engine_answer alone = answer_to(&rig, send_tail(&rig, c, path, strlen(path)));
	ck_assert(!alone.status && !alone.file[CHECKPOINT_MODEL].bytes && !alone.file[CHECKPOINT_OPTIMIZER].bytes);
	ck_assert(alone.file[CHECKPOINT_CARRY].bytes && alone.count == 1 && alone.applied_step == 2);
	ck_assert_mem_eq(&alone.file[CHECKPOINT_CARRY], &all.file[CHECKPOINT_CARRY], 2 * sizeof(all.file[0]));
	ck_assert(!checkpoint_remove(path, why, sizeof(why)) && access(path, F_OK));
	rig_close(&rig);
}
END_TEST

START_TEST(a_checkpoint_holds_the_state_of_its_command)
{
	struct rig_config c = config(2);
	open_trained(&rig, &c);
	rig_fill_all(&rig, 9, false);
	ck_assert_uint_eq(rig_add(&rig, 0, 0, 1).result, COUNTED);
	size_t n = rig_bytes(&rig, SEG_PARAMS, 0);
	void *params = malloc(n), *state = malloc(rig_bytes(&rig, SEG_STATE1, 0));
	memcpy(params, rig_data(&rig, SEG_PARAMS, 0), n);
	memcpy(state, rig_data(&rig, SEG_STATE1, 0), rig_bytes(&rig, SEG_STATE1, 0));
	uint64_t id = send_save(&rig, false);
	struct engine_command close = { .op = ENGINE_CLOSE, .window = 2 },
			      go = { .op = ENGINE_GO, .window = 2, .term = 1, .attempt = 1 };
	struct engine_command commit = rig_commit_command(&rig, APPLIED, 1, 0.5);
	rig_send(&rig, close);
	rig_send(&rig, go);
	rig_send(&rig, commit);
	struct engine_answer a = answer_to(&rig, id);
	ck_assert_msg(!a.status, "%s", a.text);
	ck_assert(a.window == 2 && a.applied_step == 2 && !a.file[CHECKPOINT_CARRY].bytes &&
		  !a.file[CHECKPOINT_WINDOW].bytes);
	while (rig_read(&rig), rig.state.r.window < 3)
		usleep(1000);
	ck_assert(memcmp(params, rig_data(&rig, SEG_PARAMS, 0), n));
	rig_open(&other, &c);
	rig_start(&other);
	struct engine_restore from = restore_of(&a);
	struct engine_answer b = restore(&other, &from);
	ck_assert_msg(!b.status, "%s", b.text);
	ck_assert_mem_eq(params, rig_data(&other, SEG_PARAMS, 0), n);
	ck_assert_mem_eq(state, rig_data(&other, SEG_STATE1, 0), rig_bytes(&rig, SEG_STATE1, 0));
	free(params);
	free(state);
	rig_close(&other);
	rig_close(&rig);
}
END_TEST

/* The rig's memory, mapped once more. */
static void take_memory(struct memory *m)
{
	ck_assert_int_eq(memory_take(m, dup(rig.plan_fd), RIG_GENERATION, why, sizeof(why)), ST_OK);
	for (int i = 0; i < rig.n_segments; i++)
		ck_assert_int_eq(memory_take(m, dup(rig.segment[i].fd), RIG_GENERATION, why, sizeof(why)), ST_OK);
}

static uint64_t none(void)
{
	return 0;
}

/* The memory is overwritten as soon as it is protected, wherever the writer is. Each second time there is no memory for
 * copies: it waits for the writer. The last times the arenas are far. */
START_TEST(protected_memory_may_be_written)
{
	struct rig_config c = rig_small();
	c.tensor[0].shape[0] = 57 * 1700; /* 12 MiB of f32 */
	c.tensor[4].shape[0] = 57 * 1700;
	c.optim = adamw;
	rig_open(&rig, &c);
	struct memory m = MEMORY_NONE;
	struct workers *w;
	struct arith *arith;
	struct snapshot *s;
	struct engine_file files[ENGINE_FILES];
	struct engine_dir made;
	take_memory(&m);
	ck_assert_int_eq(workers_new(&w, 2), ST_OK);
	ck_assert_int_eq(arith_host_open(&arith, &m, "", w), ST_OK);
	arith->is_far = _i >= 4;
	ck_assert_int_eq(snapshot_new(&s, &m, arith, w, _i % 2 ? none : segment_memory_available), ST_OK);
	static const enum segment_role roles[] = { SEG_STATE1, SEG_STATE0, SEG_PARAMS, SEG_MASTER, SEG_ACCUM1 };
	for (int i = 0; i < 5; i++)
		memset(rig_data(&rig, roles[i], 0), 0x40 + i, rig_bytes(&rig, roles[i], 0));
	rig.state.r.x = rig.state.r.filled = 1;
	rig.state.r.micro_size = 2;
	ck_assert_int_eq(snapshot_begin(s, &rig.state, path, SNAPSHOT_ALL, why, sizeof(why)), ST_OK);
	ck_assert_int_eq(snapshot_begin(s, &rig.state, path, SNAPSHOT_ALL, why, sizeof(why)), ST_SLOT_BUSY);
	for (int i = 0; i < 5; i++) {
		snapshot_protect(s, roles[i]);
		memset(rig_data(&rig, roles[i], 0), 0, rig_bytes(&rig, roles[i], 0));
	}
	poll(&(struct pollfd){ .fd = snapshot_fd(s), .events = POLLIN }, 1, -1);
	ck_assert_int_eq(snapshot_end(s, files, &made, why, sizeof(why)), ST_OK);
	ck_assert_int_eq(snapshot_end(s, files, &made, why, sizeof(why)), ST_NOT_READY);
	static const unsigned char first[] = { 0x42, 0x43, 0x44 }; /* model, optimizer (master), carry */
	for (int i = 0; i < 3; i++) {
		char name[160];
		snprintf(name, sizeof(name), "%s/%s", path, checkpoint_part_name((enum checkpoint_part)i));
		int fd = open(name, O_RDONLY);
		struct safetensors *t;
		size_t n;
		ck_assert_msg(!safetensors_read(name, fd, &t, why, sizeof(why)), "%s", why);
		const struct safe_tensor *all = safetensors_all(t, &n);
		uint64_t end = all[n - 1].end;
		unsigned char *data = malloc(end);
		ck_assert_int_eq(pread(fd, data, end, (off_t)safetensors_data_offset(t)), (ssize_t)end);
		uint64_t same = 0; /* a byte at a time would be millions of assertions */
		while (same < end && data[same] == first[i])
			same++;
		ck_assert(i == 1 || same == end);
		for (size_t k = 0; i == 1 && k < n; k++)
			ck_assert_uint_eq(data[all[k].begin], strstr(all[k].name, ".master")	   ? 0x43
							      : strstr(all[k].name, ".exp_avg_sq") ? 0x40
												   : 0x41);
		free(data);
		safetensors_free(t);
		close(fd);
	}
	snapshot_free(s);
	arith->ops->close(arith);
	workers_free(w);
	memory_fini(&m);
	rig_close(&rig);
}
END_TEST

static _Atomic int n_looks;

/* Others take it all after the first look. */
static uint64_t soon_gone(void)
{
	return ++n_looks <= 1 ? UINT64_MAX : 0;
}

START_TEST(copies_leave_memory_that_others_need)
{
	struct rig_config c = rig_small();
	/* 45 MiB of f32, and as much for each state: three looks, if it went on */
	c.tensor[0].shape[0] = c.tensor[4].shape[0] = 57 * 6300;
	c.optim = adamw;
	rig_open(&rig, &c);
	struct memory m = MEMORY_NONE;
	struct workers *w;
	struct arith *arith;
	struct snapshot *s;
	struct engine_file files[ENGINE_FILES];
	struct engine_dir made;
	take_memory(&m);
	ck_assert_uint_gt(rig_bytes(&rig, SEG_PARAMS, 0) + 2 * rig_bytes(&rig, SEG_STATE0, 0), UINT64_C(128) << 20);
	ck_assert_int_eq(workers_new(&w, 2), ST_OK);
	ck_assert_int_eq(arith_host_open(&arith, &m, "", w), ST_OK);
	ck_assert_int_eq(snapshot_new(&s, &m, arith, w, soon_gone), ST_OK);
	ck_assert_int_eq(snapshot_begin(s, &rig.state, path, SNAPSHOT_STATE, why, sizeof(why)), ST_OK);
	poll(&(struct pollfd){ .fd = snapshot_fd(s), .events = POLLIN }, 1, -1);
	ck_assert_msg(!snapshot_end(s, files, &made, why, sizeof(why)), "%s", why);
	ck_assert_int_eq(n_looks, 2); /* before, and after 64 chunks: there it stopped */
	snapshot_free(s);
	arith->ops->close(arith);
	workers_free(w);
	memory_fini(&m);
	rig_close(&rig);
}
END_TEST

static void damage(const char *name, off_t at)
{
	char file[160], byte;
	snprintf(file, sizeof(file), "%s/%s", path, name);
	int fd = open(file, O_RDWR);
	at = at < 0 ? lseek(fd, 0, SEEK_END) + at : at;
	ck_assert_int_eq(pread(fd, &byte, 1, at), 1);
	byte ^= 1;
	ck_assert_int_eq(pwrite(fd, &byte, 1, at), 1);
	close(fd);
}

START_TEST(damaged_files_are_refused)
{
	static const struct {
		const char *file;
		off_t at;
		enum status status;
		const char *says;
	} cases[] = {
		{ "model.safetensors", -1, ST_CHECKSUM, "model.safetensors: its SHA-256" },
		{ "model.safetensors", 1, ST_MALFORMED, "model.safetensors" },
		{ "optimizer.safetensors", -5000, ST_CHECKSUM, "optimizer.safetensors: its SHA-256" },
		{ "carry.safetensors", -7, ST_CHECKSUM, "carry.safetensors: its SHA-256" },
		{ "window.safetensors", -1, ST_CHECKSUM, "window.safetensors: its SHA-256" },
	};
	struct rig_config c = config(0);
	open_trained(&rig, &c);
	rig_fill_slot(&rig, 0, 1);
	ck_assert_uint_eq(rig_add(&rig, 0, 0, 1).result, COUNTED);
	struct engine_answer a = answer_to(&rig, send_save(&rig, true));
	ck_assert_msg(!a.status, "%s", a.text);
	damage(cases[_i].file, cases[_i].at);
	rig_open(&other, &c);
	rig_start(&other);
	struct engine_restore from = restore_of(&a);
	struct engine_answer b = restore(&other, &from);
	ck_assert_uint_eq(b.status, cases[_i].status);
	ck_assert_msg(strstr(b.text, cases[_i].says), "%s", b.text);
	rig_read(&other);
	ck_assert(!other.state.r.params_ready);
	rig_close(&other);
	rig_close(&rig);
}
END_TEST

/* The digest follows the ranges of the update: with other param_groups the same parameters have another. */
START_TEST(a_digest_is_of_its_ranges)
{
	struct rig_config c = config(0);
	open_trained(&rig, &c);
	struct engine_answer a = answer_to(&rig, send_save(&rig, false));
	ck_assert_msg(!a.status, "%s", a.text);
	rig_open(&other, &c);
	rig_start(&other);
	struct engine_restore from = restore_of(&a);
	from.params_digest++;
	from.same_ranges = _i == 0;
	struct engine_answer b = restore(&other, &from);
	ck_assert_uint_eq(b.status, _i ? ST_OK : ST_CHECKSUM);
	rig_read(&other);
	ck_assert_uint_eq(other.state.r.params_ready, _i);
	ck_assert(!_i || other.state.r.params_digest == a.digest);
	rig_close(&other);
	rig_close(&rig);
}
END_TEST

START_TEST(another_model_is_refused)
{
	struct rig_config c = config(0), d = config(0);
	open_trained(&rig, &c);
	struct engine_answer a = answer_to(&rig, send_save(&rig, false));
	ck_assert_msg(!a.status, "%s", a.text);
	switch (_i) {
	case 0:
		d.tensor[3].shape[0]++;
		break;
	case 1:
		d.tensor[3].name = "brainy";
		break;
	case 2:
		d.tensor[3].dtype = DTYPE_F16;
		break;
	case 3:
		d.n_tensors--;
		break;
	default:
		d.optim = momentum;
	}
	rig_open(&other, &d);
	rig_start(&other);
	struct engine_restore from = restore_of(&a);
	struct engine_answer b = restore(&other, &from);
	ck_assert_uint_eq(b.status, ST_LAYOUT_MISMATCH);
	ck_assert_msg(strstr(b.text, _i == 3   ? "4 tensors"
				     : _i == 4 ? "optimizer.safetensors"
					       : "\"brain") ||
			      _i == 3,
		      "%s", b.text);
	rig_close(&other);
	rig_close(&rig);
}
END_TEST

START_TEST(a_disk_that_fails_stops_no_training)
{
	struct rig_config c = config(0);
	open_trained(&rig, &c);
	snprintf(path, sizeof(path), "/proc/self/none");
	struct engine_answer a = answer_to(&rig, send_save(&rig, false));
	ck_assert_uint_eq(a.status, ST_IO_ERROR);
	ck_assert_msg(strstr(a.text, "cannot open directory /proc/self"), "%s", a.text);
	rig_fill_all(&rig, 3, false);
	rig_add_all(&rig, NULL);
	rig_step(&rig, APPLIED, 1, 1);
	snprintf(path, sizeof(path), "%s/saved", dir);
	ck_assert_uint_eq(answer_to(&rig, send_save(&rig, false)).status, ST_OK);
	rig_close(&rig);
}
END_TEST

int main(void)
{
	log_init("test", LOG_TEXT, LOG_ERROR);
	Suite *s = suite_create("snapshot");
	TCase *c = tcase_create("snapshot");
	tcase_add_checked_fixture(c, setup, teardown);
	tcase_set_timeout(c, 60);
	suite_add_tcase(s, c);
	tcase_add_loop_test(c, training_goes_on_from_a_checkpoint_as_it_did, 0, 4);
	tcase_add_test(c, a_window_is_saved_alone);
	tcase_add_test(c, a_checkpoint_holds_the_state_of_its_command);
	tcase_add_loop_test(c, protected_memory_may_be_written, 0, 8);
	tcase_add_loop_test(c, damaged_files_are_refused, 0, 5);
	tcase_add_loop_test(c, a_digest_is_of_its_ranges, 0, 2);
	tcase_add_loop_test(c, another_model_is_refused, 0, 5);
	tcase_add_test(c, a_disk_that_fails_stops_no_training);
	tcase_add_test(c, copies_leave_memory_that_others_need);
	return suite_run(s);
}
