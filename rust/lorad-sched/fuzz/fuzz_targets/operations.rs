#![no_main]

#[path = "../operations.rs"]
mod operations;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    operations::run(bytes);
});
