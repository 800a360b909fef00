"""What a small real model must read, and how it must be asked, for its refinements to beat its second samples."""
