/*
 * A libnvidia-ml.so without a driver: the symbols and layouts that nvidia-ml-py calls, answers from
 * a profile, failures by script.
 *
 * $FAKE_NVML_CONTROL names a text file that is read again whenever it changed. One order a line,
 * '#' starts a comment, D is a device index or '*', CALL a symbol or '*':
 *
 *   profile a100|h100|h100-mig|b200     what the devices are (before the first init)
 *   count N                             how many devices nvmlDeviceGetCount tells of
 *   init CODE                           nvmlInit returns CODE
 *   fail D CALL CODE                    CALL on device D returns CODE
 *   block D CALL SECONDS                CALL on D sleeps; calls on other devices go on
 *   hold D CALL SECONDS                 CALL on D sleeps and holds the lock of the whole driver
 *   set D NAME NUMBER                   overrides one value: f94 (field 94), f202.3 (its scope 3),
 *                                       e94 (return code of field 94), gpm.1, utilization, state ...
 *   time SECONDS                        how far the counters have run
 *   event SEQ D TYPE DATA GI CI         an event; each event set sees each SEQ once
 *   process D PID BYTES GI CI           a compute process; the two instance ids may be left out
 *   trace PATH                          appends one line per call
 *
 * A sleeping call returns as soon as its line is gone. A null or foreign handle is traced as BAD and
 * refused where the real library crashes.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { OK = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, SMALL = 7,
       TIMEOUT = 10, VERSION = 25 };
enum { A100 = 1, H100 = 2, MIG = 4, B200 = 8, ALL = 15, HOPPER = H100 | MIG, NEW = HOPPER | B200 };
enum { MAX_DEVICES = 16, MAX_MIG = 4, MAX_RULES = 256 };
#include "layouts.h"
#include "script.h"
#include "devices.h"
#include "fields.h"
#include "mig_gpm.h"
#include "events.h"
