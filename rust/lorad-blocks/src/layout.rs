//! How an adapter lies in its pages.
