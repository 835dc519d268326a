"""The known data sets, one file each; MNIST, CIFAR and CINIC share pictures.py."""
