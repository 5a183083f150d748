//! The scenarios that ship with the crate: the files under `scenarios/`, by name.

/// Name and text of each, in the order of their names.
pub const PRESETS: [(&str, &str); 7] = [
    ("calm", include_str!("../scenarios/calm.txt")),
    ("flood", include_str!("../scenarios/flood.txt")),
    ("large", include_str!("../scenarios/large.txt")),
    ("one", include_str!("../scenarios/one.txt")),
    ("policies", include_str!("../scenarios/policies.txt")),
    ("policies-gpu", include_str!("../scenarios/policies-gpu.txt")),
    ("zipf", include_str!("../scenarios/zipf.txt")),
];

/// The text of a preset.
pub fn preset(name: &str) -> Option<&'static str> {
    PRESETS.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::Scenario;

    #[test]
    fn every_file_is_a_preset_that_can_be_read() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios");
        let mut files: Vec<String> = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().path().file_stem().unwrap().to_str().unwrap().to_string())
            .collect();
        files.sort();
        assert_eq!(PRESETS.map(|(name, _)| name.to_string()).to_vec(), files);
        for (name, text) in PRESETS {
            let scenario = Scenario::parse(text).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert!(scenario.check().is_ok(), "{name}");
            assert_eq!(preset(name), Some(text));
        }
        assert_eq!(preset("none"), None);
    }
}
