/* SPDX-License-Identifier: Apache-2.0 */
/* Segments: what the kernel must guarantee to us, and what we must refuse. */
#include "engine/channel.h"
#include "engine/portions.h"
#include "engine/segment.h"
#include "base/packet.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

Suite *segment_suite(void);

#define JOB 11
#define LAYOUT 22

static char why[200];

static struct segment create(uint64_t bytes)
{
	struct segment s;
	ck_assert_msg(segment_create(&s, JOB, 5, LAYOUT, SEG_SLOT, 3, bytes, true, why, sizeof(why)) == ST_OK, "%s",
		      why);
	return s;
}

START_TEST(a_new_segment_is_zero_sealed_and_private)
{
	struct segment s = create(10000);
	struct stat info;
	int rc = fcntl(s.fd, F_GET_SEALS);
	ck_assert_int_eq(rc, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
	ck_assert_int_eq(fstat(s.fd, &info), 0);
	ck_assert_uint_eq(info.st_mode & 07777, 0600);
	ck_assert_uint_eq(s.data_bytes, 10000);
	ck_assert_uint_ge((uint64_t)info.st_blocks * 512, 10000 + SEGMENT_DATA_OFFSET); /* allocated */
	ck_assert_ptr_eq(s.data, (char *)s.header + SEGMENT_DATA_OFFSET);
	static const unsigned char zeros[10000];
	ck_assert_mem_eq(s.data, zeros, sizeof(zeros));
	ck_assert_int_lt(ftruncate(s.fd, 5000), 0);
	ck_assert_int_lt(ftruncate(s.fd, 50000), 0);
	rc = fcntl(s.fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE);
	ck_assert_int_lt(rc, 0);
	segment_close(&s);
	ck_assert_int_eq(s.fd, -1);
	segment_close(&s);
	segment_close(NULL);
}
END_TEST

/* Mapping a segment would allocate its pages, too; nobody has mapped this one. */
START_TEST(all_pages_are_allocated_before_anybody_maps_them)
{
	struct segment s;
	struct stat info;
	ck_assert_int_eq(segment_create(&s, JOB, 5, LAYOUT, SEG_SLOT, 3, 1 << 20, false, why, sizeof(why)), ST_OK);
	ck_assert_int_eq(fstat(s.fd, &info), 0);
	ck_assert_uint_ge((uint64_t)info.st_blocks * 512, (1 << 20) + SEGMENT_DATA_OFFSET);
	segment_close(&s);
}
END_TEST

START_TEST(more_than_the_machine_has_is_refused_with_numbers)
{
	struct segment s = SEGMENT_NONE;
	enum status st = segment_create(&s, JOB, 5, LAYOUT, SEG_SLOT, 3, UINT64_C(1) << 60, false, why, sizeof(why));
	ck_assert_int_eq(st, ST_NO_MEMORY);
	ck_assert_ptr_nonnull(strstr(why, "1152921504606846976"));
	ck_assert_int_eq(s.fd, -1);
	st = segment_create(&s, JOB, 5, LAYOUT, SEG_SLOT, 3, UINT64_MAX, false, why, sizeof(why));
	ck_assert_int_eq(st, ST_NO_MEMORY);
}
END_TEST

/* Bytes of memory that the descriptors have. */
static uint64_t pages_of(const struct segment *s, int n)
{
	uint64_t sum = 0;
	for (int i = 0; i < n; i++) {
		struct stat info;
		if (s[i].fd >= 0 && !fstat(s[i].fd, &info))
			sum += (uint64_t)info.st_blocks * 512;
	}
	return sum;
}

START_TEST(portions_take_no_more_than_they_may)
{
	enum { N = 40, PORTION = 1 << 20 };
	struct plan_segment wanted[N];
	struct segment segment[N], again = SEGMENT_NONE;
	for (uint32_t i = 0; i < N; i++) {
		wanted[i] = (struct plan_segment){ .role = SEG_SLOT, .index = i, .bytes = i ? 8192 : 5 << 20 };
		segment[i] = SEGMENT_NONE;
	}
	struct portions p = {
		.wanted = wanted, .segment = segment, .n = N, .job_id = JOB, .generation = 5, .fingerprint = LAYOUT
	};
	int pieces = 0;
	for (uint64_t before = 0; !portions_done(&p); pieces++) {
		int at = p.at;
		ck_assert_msg(portions_take(&p, PORTION, why, sizeof(why)) == ST_OK, "%s", why);
		uint64_t now = pages_of(segment, N);
		/* a header's page is there at once */
		ck_assert(now > before && now - before <= PORTION + 2 * SEGMENT_DATA_OFFSET);
		ck_assert_int_le(p.at - at, PORTION / PORTION_SEGMENT_COST);
		before = now;
	}
	ck_assert_int_ge(pieces, 5 + N * 65536 / PORTION);
	for (uint32_t i = 0; i < N; i++) { /* whole and sealed */
		ck_assert_uint_ge(pages_of(&segment[i], 1), SEGMENT_DATA_OFFSET + wanted[i].bytes);
		ck_assert_msg(segment_adopt(&again, segment[i].fd, JOB, LAYOUT, SEG_SLOT, i, true, why, sizeof(why)) ==
				      ST_OK,
			      "%s", why);
		ck_assert_uint_eq(again.data_bytes, wanted[i].bytes);
		segment_close(&again);
	}
}
END_TEST

START_TEST(a_portion_that_cannot_be_had_says_so)
{
	struct plan_segment wanted = { .role = SEG_SLOT, .bytes = UINT64_C(1) << 60 };
	struct segment segment = SEGMENT_NONE;
	struct portions p = { .wanted = &wanted, .segment = &segment, .n = 1, .job_id = JOB };
	ck_assert_int_eq(portions_take(&p, 1 << 20, why, sizeof(why)), ST_NO_MEMORY);
	ck_assert_ptr_nonnull(strstr(why, "1152921504606846976"));
	ck_assert(!portions_done(&p) && segment.fd == -1);
}
END_TEST

START_TEST(a_second_mapping_sees_the_same_memory)
{
	struct segment a = create(8192), b;
	struct segment_header h;
	int fd = dup(a.fd);
	strcpy(a.data, "gradient");
	ck_assert_int_eq(segment_adopt(&b, fd, JOB, LAYOUT, SEG_SLOT, 3, true, why, sizeof(why)), ST_OK);
	ck_assert_str_eq(b.data, "gradient");
	ck_assert_uint_eq(b.data_bytes, 8192);
	ck_assert_int_eq(segment_peek(b.fd, &h), ST_OK);
	ck_assert_uint_eq(h.generation, 5);
	ck_assert_uint_eq(h.index, 3);
	segment_close(&a);
	strcpy(b.data, "kept");
	segment_close(&b);
}
END_TEST

static const struct {
	uint64_t job, layout;
	uint32_t role, index;
} others[] = { { JOB + 1, LAYOUT, SEG_SLOT, 3 },
	       { JOB, LAYOUT + 1, SEG_SLOT, 3 },
	       { JOB, LAYOUT, SEG_PARAMS, 3 },
	       { JOB, LAYOUT, SEG_SLOT, 2 } };

START_TEST(a_foreign_segment_is_refused)
{
	struct segment a = create(100), b = SEGMENT_NONE;
	enum status st = segment_adopt(&b, a.fd, others[_i].job, others[_i].layout, others[_i].role, others[_i].index,
				       true, why, sizeof(why));
	ck_assert_int_eq(st, ST_SEGMENT_CORRUPT);
	ck_assert_int_eq(b.fd, -1);
	ck_assert_int_ge(fcntl(a.fd, F_GETFD), 0); /* not taken */
	segment_close(&a);
}
END_TEST

/* Every byte of the header counts. */
START_TEST(a_changed_header_is_refused)
{
	struct segment a = create(100), b;
	for (size_t i = 0; i < sizeof(struct segment_header); i++) {
		((unsigned char *)a.header)[i] ^= 4;
		ck_assert_int_eq(segment_adopt(&b, a.fd, JOB, LAYOUT, SEG_SLOT, 3, true, why, sizeof(why)),
				 ST_SEGMENT_CORRUPT);
		((unsigned char *)a.header)[i] ^= 4;
	}
	int fd = dup(a.fd);
	ck_assert_int_eq(segment_adopt(&b, fd, JOB, LAYOUT, SEG_SLOT, 3, true, why, sizeof(why)), ST_OK);
	segment_close(&a);
	segment_close(&b);
}
END_TEST

/* It does not disturb what others read of the segment. */
START_TEST(the_device_of_a_slot_is_noted)
{
	static const uint8_t mine[16] = "0123456789abcdef";
	const struct segment_device d = { 7, 3, 1 };
	struct segment a = create(100);
	struct segment_owner o;
	ck_assert_int_eq(segment_set_owner(&a, mine, why, sizeof(why)), ST_OK);
	ck_assert_uint_eq(segment_read_device(a.fd).used, 0);
	ck_assert_int_eq(segment_set_device(a.fd, &d), ST_OK);
	const struct segment_device got = segment_read_device(a.fd);
	ck_assert_mem_eq(&got, &d, sizeof(d));
	ck_assert_int_eq(segment_read_owner(a.fd, mine, &o), SEGMENT_OWN);
	ck_assert_uint_eq(segment_read_device(-1).used, 1); /* nobody can say */
	segment_close(&a);
}
END_TEST

/* A job's id can be given out again by another journal. Bytes that are neither zero nor what was written are nobody's;
 * the owner's checksum is of this header, so that it cannot be copied from another segment. */
START_TEST(the_owner_is_judged_by_its_uuid)
{
	static const uint8_t none[16], mine[16] = "0123456789abcdef", other[16] = "0123456789abcdeF";
	struct segment a = create(100), b = create(200);
	struct segment_owner o, of_b;
	ck_assert_int_eq(segment_read_owner(a.fd, mine, &o), SEGMENT_UNNAMED);
	ck_assert_int_eq(segment_read_owner(a.fd, none, &o), SEGMENT_UNNAMED);
	ck_assert_int_eq(segment_set_owner(&a, mine, why, sizeof(why)), ST_OK);
	ck_assert_int_eq(segment_set_owner(&b, mine, why, sizeof(why)), ST_OK);
	ck_assert_int_eq(segment_read_owner(a.fd, mine, &o), SEGMENT_OWN);
	ck_assert_mem_eq(o.uuid, mine, 16);
	ck_assert_int_eq(segment_read_owner(a.fd, other, &o), SEGMENT_OTHERS);
	ck_assert_int_eq(segment_read_owner(a.fd, none, &o), SEGMENT_OTHERS);
	ck_assert_int_eq(segment_read_owner(b.fd, mine, &of_b), SEGMENT_OWN);
	ck_assert_int_eq(segment_judge_owner(&of_b, a.header->crc, mine), SEGMENT_DAMAGED);
	for (size_t i = 0; i < sizeof(o); i++) {
		((unsigned char *)&o)[i] ^= 4;
		ck_assert_int_eq(segment_judge_owner(&o, a.header->crc, mine), SEGMENT_DAMAGED);
		((unsigned char *)&o)[i] ^= 4;
	}
	/* of a journal without uuids: named, and not by zeros alone */
	ck_assert_int_eq(segment_set_owner(&b, none, why, sizeof(why)), ST_OK);
	ck_assert_int_eq(segment_read_owner(b.fd, none, &o), SEGMENT_OWN);
	ck_assert_int_eq(segment_read_owner(b.fd, mine, &o), SEGMENT_OTHERS);
	struct segment moved;
	/* an older gaccd reads it, too */
	ck_assert_int_eq(segment_adopt(&moved, a.fd, JOB, LAYOUT, SEG_SLOT, 3, true, why, sizeof(why)), ST_OK);
	a.fd = -1;
	segment_close(&moved);
	segment_close(&b);
}
END_TEST

START_TEST(an_unsealed_or_short_descriptor_is_refused)
{
	struct segment a = create(100), b;
	int fd = memfd_create("bare", MFD_CLOEXEC | MFD_ALLOW_SEALING), null = open("/dev/null", O_RDWR);
	ck_assert_int_eq(write(fd, a.header, 4196), 4196);
	ck_assert_int_eq(segment_adopt(&b, fd, JOB, LAYOUT, SEG_SLOT, 3, true, why, sizeof(why)), ST_SEGMENT_CORRUPT);
	ck_assert_int_eq(ftruncate(fd, 4000), 0);
	int rc = fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
	ck_assert_int_eq(rc, 0);
	ck_assert_int_eq(segment_adopt(&b, fd, JOB, LAYOUT, SEG_SLOT, 3, true, why, sizeof(why)), ST_SEGMENT_CORRUPT);
	ck_assert_int_eq(segment_adopt(&b, null, JOB, LAYOUT, SEG_SLOT, 3, true, why, sizeof(why)), ST_SEGMENT_CORRUPT);
	close(fd);
	close(null);
	segment_close(&a);
}
END_TEST

/* What a trainer of another user can do with the read-only descriptor: nothing but read. */
static int attack(int ro)
{
	char path[40];
	snprintf(path, sizeof(path), "/proc/self/fd/%d", ro);
	if (geteuid() == 0 && (setgid(65534) || setuid(65534)))
		return 1;
	if (mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, ro, 0) != MAP_FAILED || errno != EACCES)
		return 2;
	void *p = mmap(NULL, 4096, PROT_READ, MAP_SHARED, ro, 0);
	if (p == MAP_FAILED || ((struct segment_header *)p)->magic != SEGMENT_MAGIC)
		return 3;
	if (mprotect(p, 4096, PROT_READ | PROT_WRITE) == 0)
		return 4;
	if (write(ro, "x", 1) >= 0 || ftruncate(ro, 1) == 0)
		return 5;
	if (getuid() == 65534 && (open(path, O_RDWR) >= 0 || fchmod(ro, 0666) == 0))
		return 6; /* the owner may reopen it: that is what fchmod 0600 and another uid are for */
	return 0;
}

START_TEST(a_trainer_cannot_write_a_read_only_segment)
{
	struct segment s = create(4096), b;
	int ro = segment_readonly_fd(s.fd), status;
	ck_assert_int_ge(ro, 0);
	pid_t pid = fork();
	if (pid == 0)
		_exit(attack(ro));
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert(WIFEXITED(status));
	ck_assert_int_eq(WEXITSTATUS(status), 0);
	ck_assert_int_ne(segment_adopt(&b, ro, JOB, LAYOUT, SEG_SLOT, 3, true, why, sizeof(why)), ST_OK);
	ck_assert_int_eq(segment_adopt(&b, ro, JOB, LAYOUT, SEG_SLOT, 3, false, why, sizeof(why)), ST_OK);
	segment_close(&b);
	segment_close(&s);
	ck_assert_int_eq(segment_readonly_fd(99999), -ENOENT);
}
END_TEST

/* The longest message fits into a socket's buffer. */
START_TEST(the_longest_command_passes)
{
	static char sent[sizeof(struct engine_command) + ENGINE_MAX_PRESENT], received[sizeof(sent)];
	int pair[2];
	ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
	ck_assert_int_eq(packet_send(pair[0], sent, sizeof(sent), NULL, 0, NULL, 0), 0);
	ck_assert_int_eq(packet_recv(pair[1], received, sizeof(received), NULL, NULL), (int)sizeof(sent));
	close(pair[0]);
	close(pair[1]);
}
END_TEST

Suite *segment_suite(void)
{
	Suite *s = suite_create("segment");
	TCase *t = tcase_create("segment");
	tcase_add_test(t, a_new_segment_is_zero_sealed_and_private);
	tcase_add_test(t, all_pages_are_allocated_before_anybody_maps_them);
	tcase_add_test(t, more_than_the_machine_has_is_refused_with_numbers);
	tcase_add_test(t, portions_take_no_more_than_they_may);
	tcase_add_test(t, a_portion_that_cannot_be_had_says_so);
	tcase_add_test(t, a_second_mapping_sees_the_same_memory);
	tcase_add_loop_test(t, a_foreign_segment_is_refused, 0, sizeof(others) / sizeof(others[0]));
	tcase_add_test(t, a_changed_header_is_refused);
	tcase_add_test(t, the_owner_is_judged_by_its_uuid);
	tcase_add_test(t, the_device_of_a_slot_is_noted);
	tcase_add_test(t, an_unsealed_or_short_descriptor_is_refused);
	tcase_add_test(t, a_trainer_cannot_write_a_read_only_segment);
	tcase_add_test(t, the_longest_command_passes);
	suite_add_tcase(s, t);
	return s;
}
