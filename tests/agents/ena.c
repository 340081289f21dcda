/* Answers ethtool's ioctl for the interface `ena0` as the ENA driver does, for a process that has this
 * library preloaded. ENA_ERRNO names the number of an error to answer with instead.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static const struct { const char *name; uint64_t value; } stats[] = {
    {"tx_timeout", 0}, {"suspend", 0}, {"bw_in_allowance_exceeded", 11},
    {"bw_out_allowance_exceeded", 1ull << 40}, {"pps_allowance_exceeded", 13},
    {"conntrack_allowance_exceeded", 14}, {"linklocal_allowance_exceeded", 15},
    {"conntrack_allowance_available", 136812}, {"queue_0_tx_cnt", 99},
};
enum { COUNT = sizeof stats / sizeof *stats };

int ioctl(int descriptor, unsigned long request, ...) {
    va_list rest;
    va_start(rest, request);
    void *argument = va_arg(rest, void *);
    va_end(rest);
    struct ifreq *asked = argument;
    if (request != SIOCETHTOOL || strcmp(asked->ifr_name, "ena0"))
        return (int)syscall(SYS_ioctl, descriptor, request, argument);
    const char *error = getenv("ENA_ERRNO");
    if (error) {
        errno = atoi(error);
        return -1;
    }
    uint32_t command = *(uint32_t *)asked->ifr_data;
    if (command == ETHTOOL_GSSET_INFO) {
        struct ethtool_sset_info *info = (void *)asked->ifr_data;
        if (info->sset_mask != 1ull << ETH_SS_STATS) { errno = EINVAL; return -1; }
        info->data[0] = COUNT;
    } else if (command == ETHTOOL_GSTRINGS) {
        struct ethtool_gstrings *strings = (void *)asked->ifr_data;
        if (strings->string_set != ETH_SS_STATS || strings->len != COUNT) { errno = EINVAL; return -1; }
        for (int i = 0; i < COUNT; i++)
            strncpy((char *)strings->data + i * ETH_GSTRING_LEN, stats[i].name, ETH_GSTRING_LEN);
    } else if (command == ETHTOOL_GSTATS) {
        struct ethtool_stats *values = (void *)asked->ifr_data;
        if (values->n_stats != COUNT) { errno = EINVAL; return -1; }
        for (int i = 0; i < COUNT; i++) values->data[i] = stats[i].value;
    } else {
        errno = EOPNOTSUPP;
        return -1;
    }
    return 0;
}
