"""What a Hub keeps in its folder: repositories, file contents and Xet objects, each written durably."""
