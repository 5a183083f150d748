//! The example prints what `examples/embed.txt` says. `LORAD_REWRITE=1` writes what it prints now into it.

#[allow(dead_code)] // its `main`
#[path = "../examples/embed.rs"]
mod embed;

#[test]
fn the_example_prints_what_it_says() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/embed.txt");
    let mut printed = Vec::new();
    embed::run(&mut printed).unwrap();
    let printed = String::from_utf8(printed).unwrap();
    if std::env::var_os("LORAD_REWRITE").is_some() {
        std::fs::write(path, &printed).unwrap();
    }
    let expected = std::fs::read_to_string(path).unwrap();
    assert_eq!(printed, expected, "LORAD_REWRITE=1 writes what it prints now");
}
