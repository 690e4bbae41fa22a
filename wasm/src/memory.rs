//! The allocator. Memory that cannot grow is an error with a message, where the standard library's handler would trap.

#![expect(unsafe_code, reason = "the trait for allocators is unsafe")]

use std::alloc::{GlobalAlloc, Layout, System};

use wasm_bindgen::throw_str;

/// The system's allocator, whose failures are JavaScript errors.
struct Memory;

#[global_allocator]
static MEMORY: Memory = Memory;

// SAFETY: all calls are passed on. A failure does not return: it leaves the module by an exception, and JavaScript does
// not call the instance again.
unsafe impl GlobalAlloc for Memory {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: per this function's contract.
        allocated(unsafe { System.alloc(layout) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: per this function's contract.
        allocated(unsafe { System.alloc_zeroed(layout) })
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: per this function's contract.
        allocated(unsafe { System.realloc(memory, layout, size) })
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: per this function's contract.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[inline]
fn allocated(memory: *mut u8) -> *mut u8 {
    if memory.is_null() {
        throw_str(
            "the memory cannot grow further; use a smaller model, or fewer and shorter texts",
        );
    }
    memory
}
