//! Who owns each page.
