//! This process's memory, and its limit.

use std::{fs, process};

use crate::error::{Error, Result};

/// Limit files for both control group versions, as used by containers.
const LIMIT_FILES: [&str; 2] = [
    "/sys/fs/cgroup/memory.max",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes",
];

/// Larger values mean no limit: version 1 reports the largest page-size multiple.
const MAX_LIMIT: u64 = 1 << 60;

/// This process's memory limit in bytes: from its control group, or its function's memory in MB, as Lambda writes it.
pub fn limit(of_function: Option<&String>) -> Option<u64> {
    let of_function = of_function.and_then(|memory| memory.parse::<u64>().ok());
    let of_function = of_function.map(|megabytes| megabytes.saturating_mul(1 << 20));
    let groups = LIMIT_FILES
        .iter()
        .filter_map(|path| fs::read_to_string(path).ok());
    let groups = groups.filter_map(|limit| limit.trim().parse().ok());
    of_function
        .into_iter()
        .chain(groups)
        .filter(|limit| *limit < MAX_LIMIT)
        .min()
}

/// This process's resident memory in bytes.
pub fn resident() -> Result<u64> {
    memory_of(process::id(), "VmRSS")
}

/// The machine's memory in bytes.
pub fn total() -> Result<u64> {
    value("/proc/meminfo", "MemTotal")
}

/// A value from `/proc/PROCESS/status`, in bytes.
pub fn memory_of(process: u32, key: &str) -> Result<u64> {
    value(&format!("/proc/{process}/status"), key)
}

/// A value in one of the system's files, in bytes.
fn value(path: &str, key: &str) -> Result<u64> {
    let status = fs::read_to_string(path).map_err(Error::io(format!("cannot read `{path}`")))?;
    let kilobytes = status.lines().find_map(|line| {
        let value = line.strip_prefix(key)?.strip_prefix(':')?;
        value.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()
    });
    let missing = || Error::config(format!("expected `{key}` in `{path}`, but found none"));
    kilobytes
        .map(|kilobytes| kilobytes * 1024)
        .ok_or_else(missing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_of_a_function_is_a_limit() {
        assert!(limit(Some(&"64".into())).is_some_and(|limit| limit <= 64 << 20));
        let used = resident().unwrap();
        assert!((1 << 20..1 << 40).contains(&used), "{used}");
        assert!(memory_of(process::id(), "VmNothing").is_err());
    }
}
